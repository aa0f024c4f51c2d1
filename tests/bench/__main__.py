"""`make bench`: the quantizer beside its peers and the machine's floor, then jobs in a warm service.

`python -m tests.bench [--peer PYTHON] [--page FILE]`: the quantizer's tables are also written to FILE.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ENGINE = "tests.bench.engine"
PARTS = (
    ("The quantizer, without fsync in any arm", [ENGINE, "--rounds", "3"]),
    ("The quantizer, with fsync in every arm", [ENGINE, "--fsync", "--alone", "--rounds", "2"]),
    (
        "The quantizer over sizes",
        [ENGINE, "--alone", "--rounds", "2", *(word for size in ("0.5", "1", "2", "4") for word in ("--gb", size))],
    ),
    ("A head by GPTQ", ["tests.bench.heads"]),
    ("A job in a warm service", ["tests.bench.jobs"]),
    ("POST /v1/jobs beside a bare handler", ["tests.bench.api"]),
    ("Jobs asked for among many finished ones", ["tests.bench.many_jobs"]),
    ("Pages of the dashboard in a Chromium", ["tests.bench.pages"]),
)
ABOUT = """# Speed of the quantizer

Written by `make bench`; the numbers are those of the machine it ran on. A DSpark-shaped checkpoint, a warm page cache,
whole processes: imports are in the time. `draftmill, warm` is the stage alone, in a fork of a process that has
everything imported, as a job of a running service pays it. `floor` reads every byte of the source and writes as many as
the variant has, without computing anything. `modelopt` is ModelOpt on flat linears; `model_free_ptq` is
llm-compressor's, in FP8_DYNAMIC, in an environment of its own. The best of a few interleaved rounds counts. Before each
arm a file of the variant's size is written and removed, so that every arm finds memory that the machine has at hand.
"""


def main(arguments: list[str]) -> int:
    """The number of parts that missed their target or failed."""
    parser = argparse.ArgumentParser(prog="tests.bench", description="Speed, side by side with its peers.")
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with llm-compressor")
    parser.add_argument("--page", type=Path, help="where the quantizer's tables go")
    options = parser.parse_args(arguments)
    missed, page = 0, ABOUT
    for title, (module, *words) in PARTS:
        print(f"\n{title}\n", flush=True)
        peer = ["--peer", options.peer] if options.peer and module == ENGINE and "--alone" not in words else []
        done = subprocess.run(
            [sys.executable, "-m", module, *words, *peer], check=False, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, flush=True)
        missed += done.returncode != 0
        if module == ENGINE:
            page += f"\n## {title}\n\n{done.stdout}"
    if options.page and not missed:
        options.page.write_text(page)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
