"""Capture: hidden states of a target, taken in a fresh engine process and checked before anything uses them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftmill._model import Model
from draftmill.digests import digest
from draftmill.heads import CaptureOptions
from draftmill.problems import ProblemError
from draftmill.sources import Sha256
from draftmill_worker.bench import boot, model_infos
from draftmill_worker.bench.engine_args import window
from draftmill_worker.bench.engine_env import engine_environment
from draftmill_worker.bench.prompts import Prompt, sha256
from draftmill_worker.checkpoint.hashing import sha256_file
from draftmill_worker.files import write_atomic
from draftmill_worker.heads import rows
from draftmill_worker.heads.capture_wire import CaptureRequest, CaptureResult
from draftmill_worker.receipts.versions import CPU_ENGINE, NO_ENGINE, engine_build

MODULE = "draftmill_worker.heads.capture_main"
MANIFEST = "capture.json"
RUNNER = {
    # Releases from 0.29 on default to a runner on which a hook never fires.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
}
"""Unless the operator's own environment says otherwise."""
ON_CPU = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "DRAFTMILL_VLLM_PLUGIN": "torchvision"}
ENGINE_LENGTH = 2048
"""Tokens of a text where neither the job nor the model's window says less."""


class CaptureManifest(Model):
    """`capture.json`, beside the rows."""

    sha256: Sha256
    """Of capture.safetensors."""
    rows: int
    columns: int
    texts: int
    calibration_rows: int
    held_out_rows: int
    texts_sha256: Sha256
    """Identity of what was read: the prompts, how they are put, how long answers may be."""
    own_outputs: bool
    engine: str
    """Build of the engine."""
    engine_args: dict[str, Any]
    environment: dict[str, str]
    """What the engine process was given beyond the usual."""
    runner: str
    model: str
    norm: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """An engine process's own files, in the folder of its capture."""

    folder: Path

    @property
    def request(self) -> Path:
        return self.folder / "capture-request.json"

    @property
    def stdout(self) -> Path:
        return self.folder / "engine-stdout.log"

    @property
    def stderr(self) -> Path:
        return self.folder / "engine-stderr.log"


@dataclass(frozen=True)
class Place:
    out: Path
    """Takes capture.safetensors and capture.json."""
    logs: Path
    """Takes what the engine says."""
    scratch: Path
    boot_seconds: float
    cache: Path
    """Keeps what the engine finds out about its own classes."""
    visible: Mapping[str, str] = field(default_factory=dict)
    """Environment that shows the engine its devices."""

    @property
    def home(self) -> Path:
        """The engine's own folder."""
        return self.scratch / "capture-boot"


def capture(
    target: Path,
    config: Mapping[str, Any],
    options: CaptureOptions,
    texts: tuple[Prompt, ...],
    *,
    place: Place,
    progress: Callable[[int], None],
) -> CaptureManifest:
    """Rows of `texts` under the target in `place.out`. `config` is the target's; `progress` gets the texts done.

    ProblemError: engine-unavailable, boot-failed, capture-silent, capture-short, capture-invalid, prompts-invalid. The
    rows are gone then.
    """
    build = engine_build()
    if build == NO_ENGINE:
        raise ProblemError("engine-unavailable", "no vLLM is installed beside this worker")
    cpu = build.startswith(CPU_ENGINE)
    args, environment = _args(config, options), _environment(options, place.visible, cpu=cpu)
    out = place.out / rows.FILE
    request = CaptureRequest(
        target=target,
        engine_args=args,
        texts=texts,
        chat_template=options.texts.chat_template == "auto",
        own_outputs=options.own_outputs,
        max_tokens=options.texts.max_tokens,
        # One is left for the token that the engine must produce.
        max_length=args["max_model_len"] - 1,
        max_rows=options.max_rows,
        out=out,
    )
    try:
        result = _boot(request, engine_environment(place.home, environment, {}, cpu=cpu), place, progress, build)
        found = rows.described(rows.open_rows(out))
    except ProblemError:
        out.unlink(missing_ok=True)
        raise
    manifest = CaptureManifest(
        sha256=sha256_file(out),
        texts_sha256=sha256(texts, options.texts),
        own_outputs=options.own_outputs,
        engine=build,
        engine_args=args,
        environment=environment,
        runner=result.runner,
        model=result.model,
        norm=result.norm,
        plugins=result.plugins,
        **found,
    )
    write_atomic(place.out / MANIFEST, manifest.model_dump_json(indent=1).encode())
    return manifest


def content_sha256(manifest: CaptureManifest) -> str:
    """Identity of what a head can depend on: the rows, whatever engine gave them."""
    return digest({"rows": manifest.sha256})


def _boot(
    request: CaptureRequest, environment: dict[str, str], place: Place, progress: Callable[[int], None], build: str
) -> CaptureResult:
    files, kept = Files(place.logs), place.cache / "vllm" / build / model_infos.FOLDER
    place.logs.mkdir(parents=True, exist_ok=True)
    place.out.mkdir(parents=True, exist_ok=True)
    write_atomic(files.request, request.model_dump_json().encode())
    own = Path(environment["VLLM_CACHE_ROOT"])
    model_infos.bring(kept, own)
    ran = boot.run(files, environment, place.home, place.boot_seconds, progress, module=MODULE, answer=CaptureResult)
    model_infos.keep(own, kept)
    return ran.result


def _args(config: Mapping[str, Any], options: CaptureOptions) -> dict[str, Any]:
    args = options.engine_args.model_dump(exclude_none=True)
    args.setdefault("max_model_len", min(window(config) or ENGINE_LENGTH, ENGINE_LENGTH))
    args.setdefault("max_num_seqs", 16)
    return args


def _environment(options: CaptureOptions, visible: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    runner = {name: os.environ.get(name, value) for name, value in RUNNER.items()}
    asked = {str(name): value for name, value in options.engine_env.items()}
    return runner | (ON_CPU if cpu else {}) | dict(visible) | asked
