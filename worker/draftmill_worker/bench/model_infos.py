"""What vLLM finds out about its own model classes, kept between boots.

A boot has a compile cache of its own. vLLM puts facts about model classes (which interfaces they have) there too, and
finding them takes a process with all its imports, per class. They hold no graph, and vLLM checks each against a hash of
the class's source: so they, and nothing else, are carried over, per build of the engine.
"""

import shutil
from pathlib import Path

from draftmill_worker.files import write_atomic

FOLDER = "modelinfos"


def bring(kept: Path, cache_root: Path) -> None:
    cache_root.mkdir(parents=True, exist_ok=True)
    if kept.is_dir():
        shutil.copytree(kept, cache_root / FOLDER)


def keep(cache_root: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for file in (cache_root / FOLDER).glob("*.json"):
        if not (kept / file.name).exists():
            write_atomic(kept / file.name, file.read_bytes())
