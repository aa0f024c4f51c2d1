"""The peer: llm-compressor's model_free_ptq. `PYTHON model_free_arm.py SOURCE OUT SCHEME IGNORE [--fsync]`

Runs in an environment of its own, since llm-compressor's pins and vLLM's exclude each other. IGNORE is a JSON list of
the modules to leave alone, so that all arms do the same work; one worker per CPU, as its own command does.
"""

import json
import os
import sys
from pathlib import Path

from llmcompressor import model_free_ptq


def main(source: str, out: str, scheme: str, ignore: list[str], *, fsync: bool) -> None:
    workers = len(os.sched_getaffinity(0))
    model_free_ptq(source, out, scheme=scheme, ignore=ignore, max_workers=workers, device="cpu")
    if fsync:
        for path in Path(out).glob("*.safetensors"):
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


if __name__ == "__main__":
    source, out, scheme, ignore, *rest = sys.argv[1:]
    main(source, out, scheme, json.loads(Path(ignore).read_text()), fsync=rest == ["--fsync"])
