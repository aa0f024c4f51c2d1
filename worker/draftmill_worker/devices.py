"""Which devices a stage needs to itself, and how a process is shown just those.

`cpu` is the machine's processors as one device for engines; `gpu3` is the GPU that nvidia-smi numbers 3.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from draftmill.benchmarks import Benchmark
from draftmill.heads import CaptureOptions
from draftmill.jobs import JobSpec
from draftmill.problems import ProblemError
from draftmill.states import Stage
from draftmill_service.ledger import Wanted
from draftmill_worker.receipts.versions import CPU_ENGINE, NO_ENGINE, engine_build
from draftmill_worker.settings import WorkerSettings

CPU = "cpu"
ACCELERATOR = "accelerator"
"""All that an engine may find on a machine whose GPUs nvidia-smi does not list."""
_GPU = "gpu"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wanted(stage: Stage, spec: JobSpec, settings: WorkerSettings) -> Wanted | None:
    """What the stage needs; None where it disturbs nobody. ProblemError("engine-unavailable") for too much."""
    if stage is Stage.QUANTIZE and settings.device.startswith("cuda"):
        return _to_pack(settings)
    if stage in (Stage.CHOOSE, Stage.BENCH) and spec.benchmark is not None:
        return _to_measure(spec.benchmark, settings)
    if stage is Stage.CAPTURE and spec.capture is not None and spec.reads_hidden_states:
        return _to_measure(spec.capture, settings)
    return None


def _to_pack(settings: WorkerSettings) -> Wanted:
    found = gpus()
    _, _, number = settings.device.partition(":")
    if number:
        if not number.isdecimal() or int(number) >= len(found):
            raise ProblemError("engine-unavailable", f"{settings.device} is none of {len(found)} GPUs")
        found = found[int(number) :][:1]
    return _some(found, 1, settings)


def _to_measure(benchmark: Benchmark | CaptureOptions, settings: WorkerSettings) -> Wanted | None:
    engine = engine_build()
    if engine == NO_ENGINE:
        # The stage says so, by its own problem.
        return None
    if engine.startswith(CPU_ENGINE):
        return _some((CPU,), 1, settings)
    count, asked = benchmark.engine_args.tensor_parallel_size or 1, benchmark.engine_env.get(VISIBLE)
    if asked is not None:
        chosen = gpus({VISIBLE: asked})
        return _some(tuple(name for name in chosen if name in gpus()), len(chosen), settings)
    return _some(gpus(), count, settings)


def _some(names: Sequence[str], count: int, settings: WorkerSettings) -> Wanted:
    if not names and shutil.which("nvidia-smi") is None:
        return Wanted(machine(settings), (ACCELERATOR,), 1)
    if not 1 <= count <= len(names):
        raise ProblemError("engine-unavailable", f"{count} GPUs are needed, and this worker sees {len(names)}")
    return Wanted(machine(settings), tuple(names), count)


def machine(settings: WorkerSettings) -> str:
    """What devices' names are of. The kernel's boot id is the same in every container of a machine."""
    return settings.machine or _BOOT_ID.read_text().strip()


def gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to a process, in its order."""
    known = _listed()
    shown = environ.get(VISIBLE)
    if shown is None:
        return tuple(f"{_GPU}{index}" for index in known.values())
    names: list[str] = []
    for entry in (entry.strip() for entry in shown.split(",")):
        if entry in ("", "-1", "NoDevFiles"):
            # CUDA reads no further.
            break
        # A UUID may be cut short. One of a part of a GPU (MIG) has no number, and is a name of its own.
        numbers = (index for uuid, index in known.items() if entry.startswith("GPU-") and uuid.startswith(entry))
        names.append(f"{_GPU}{next(numbers, entry)}")
    return tuple(names)


def _listed() -> dict[str, str]:
    """Index by UUID of every NVIDIA GPU, in order; empty without any."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    asked = [tool, "--query-gpu=index,uuid", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        return {}
    rows = (line.partition(",") for line in done.stdout.splitlines() if line.strip())
    return {uuid.strip(): index.strip() for index, _, uuid in rows}


def visible(devices: Sequence[str]) -> dict[str, str]:
    """Environment that shows a process these devices alone; nothing where they are not GPUs by number."""
    entries = [name.removeprefix(_GPU) for name in devices if name.startswith(_GPU)]
    # nvidia-smi numbers by bus, CUDA by speed unless told otherwise.
    return {VISIBLE: ",".join(entries), ORDER: "PCI_BUS_ID"} if entries else {}
