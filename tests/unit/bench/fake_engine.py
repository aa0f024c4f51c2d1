"""An engine process that does what its request's first line says: `python -m tests.unit.bench.fake_engine ...`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from draftmill_worker import process
from draftmill_worker.bench.wire import EngineResult

SLEEPER = "import signal; signal.pause()"


def main() -> None:
    request, result, parent, progress = sys.argv[1:]
    process.die_with_parent(int(parent))
    act = Path(request).read_text()
    print(f"engine {os.getpid()} of session {os.getsid(0)}", flush=True)
    if "children" in act:
        left = subprocess.Popen([sys.executable, "-c", SLEEPER])
        print(f"child {left.pid}", flush=True)
    if "variables" in act:
        print("\n".join(f"{name}={value}" for name, value in sorted(os.environ.items())), flush=True)
    if "crash" in act:
        sys.stderr.write("loading\nRuntimeError: no kernel, token hf_abcdefghijklmnopqrstuvwxyz\n")
        raise SystemExit(7)
    if "killed" in act:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in act:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        signal.pause()
    if "silent" in act:
        return
    for done in (1, 2, 3):
        os.write(int(progress), f"{done}\n".encode())
    Path(result).write_text("{" if "garbage" in act else EngineResult(timings={"run": 1.0}).model_dump_json())


if __name__ == "__main__":
    main()
