"""What the machine needs for the bytes alone. `python -m tests.bench.floor SOURCE OUT WRITE_BYTES THREADS [--fsync]`

Every byte of SOURCE is read once and WRITE_BYTES are written to OUT, preallocated, by THREADS threads in chunks of
1 MiB, without computing anything. Prints the seconds without the interpreter's start.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

CHUNK = 1 << 22


def main(source: Path, out: Path, write_bytes: int, threads: int, *, fsync: bool) -> float:
    started = time.perf_counter()
    reader, size = os.open(source, os.O_RDONLY), source.stat().st_size
    writer = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(writer, 0, write_bytes)
    own = local()

    def move(position: int) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(CHUNK)
        count = os.preadv(reader, [own.buffer], position)
        first, last = position * write_bytes // size, (position + count) * write_bytes // size
        os.pwrite(writer, memoryview(own.buffer)[: last - first], first)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(move, range(0, size, CHUNK)):
            pass
    if fsync:
        os.fsync(writer)
    os.close(reader)
    os.close(writer)
    return time.perf_counter() - started


if __name__ == "__main__":
    source, out, write_bytes, threads, *rest = sys.argv[1:]
    print(main(Path(source), Path(out), int(write_bytes), int(threads), fsync=rest == ["--fsync"]))
