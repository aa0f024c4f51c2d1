"""`make bench`: the quantizer beside ModelOpt and the machine's floor, then a job's time in a warm service."""

import subprocess
import sys

PARTS = (
    ("The quantizer, without fsync in any arm", ["tests.bench.engine", "--rounds", "2"]),
    ("The quantizer, with fsync in every arm", ["tests.bench.engine", "--fsync", "--alone", "--rounds", "2"]),
    ("A job in a warm service", ["tests.bench.jobs"]),
)


def main() -> int:
    """The number of parts that missed their target or failed."""
    missed = 0
    for title, (module, *options) in PARTS:
        print(f"\n{title}\n", flush=True)
        missed += subprocess.run([sys.executable, "-m", module, *options], check=False).returncode != 0
    return missed


if __name__ == "__main__":
    sys.exit(main())
