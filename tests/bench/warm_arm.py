"""The quantize stage as the service runs it: in a fork of a process that has everything imported.

`python -m tests.bench.warm_arm SOURCE OUT FORMAT`. Prints the child's wall and CPU seconds as JSON.
"""

import json
import os
import sys
import time
from pathlib import Path

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.kernels import warm_up
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import quantize


def main(source: Path, out: Path, format: Format) -> None:
    warm_up()
    checkpoint = open_checkpoint(source)
    plan = make_plan(checkpoint, detect(checkpoint), format, QuantizeOptions(scales="reference"))
    out.mkdir()
    os.sync()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        quantize(source, plan, out, fsync=False)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit("the child failed")
    print(json.dumps({"wall": time.perf_counter() - started, "cpu": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Format(sys.argv[3]))
