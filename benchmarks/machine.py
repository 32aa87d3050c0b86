"""What the benchmarks share: memory control groups, the machine's name, bare reads of the disk."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flexinfer.memory.arena import Arena
from flexinfer.streaming.reader import Reader
from flexinfer.units import MiB

LLAMACPP = str(Path(__file__).with_name("llamacpp.py"))
CGROUPS = Path("/sys/fs/cgroup")
PIECE_BYTES = 4 * MiB


def machine() -> str:
    """Processor, cores, memory and commit, for the head of a table."""
    model = next(
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    total = int(Path("/proc/meminfo").read_text().split()[1]) // 1024**2
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {total} GiB, commit {commit}"


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with a memory limit (version 1 or 2; needs root); yields its folder."""
    version1 = (CGROUPS / "memory/memory.limit_in_bytes").exists()
    group = (CGROUPS / "memory" if version1 else CGROUPS) / f"flexinfer-{os.getpid()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if version1 else "memory.max"
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def run_json(command: Sequence[str], group: Path | None = None) -> dict[str, Any]:
    """Run a command, in a group where one is given; its last line of output is a JSON object."""

    def enter() -> None:
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def bare_read(path: Path, offset_bytes: int, size_bytes: int, threads: int = 2) -> float:
    """Seconds to read a range past the page cache into freshly mapped huge pages, and no more
    than that.
    """
    with closing(Reader(path)) as reader, closing(Arena(size_bytes + 2 * PIECE_BYTES)) as arena:
        starts = iter(range(0, size_bytes // PIECE_BYTES * PIECE_BYTES, PIECE_BYTES))
        region = arena.take(size_bytes + PIECE_BYTES, 4096)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                with region.part(start, PIECE_BYTES).view() as memory:
                    reader.read(offset_bytes // 4096 * 4096 + start, PIECE_BYTES, memory)

        began = time.perf_counter()
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began


def bare_bandwidth(path: Path, size_bytes: int = 1 << 30) -> float:
    """Bytes/s of bare direct reads into memory that has been touched before."""
    with closing(Reader(path)) as reader, closing(Arena(64 * MiB)) as arena:
        region = arena.take(64 * MiB, 4096)
        slots = [region.part(i * PIECE_BYTES, PIECE_BYTES) for i in range(8)]
        total = min(size_bytes, path.stat().st_size // PIECE_BYTES * PIECE_BYTES)
        starts = iter(range(0, total, PIECE_BYTES))
        lock = threading.Lock()

        def work(own: Sequence[Any]) -> None:
            for count in range(1 << 30):
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                with own[count % len(own)].view() as memory:
                    reader.read(start, PIECE_BYTES, memory)

        for slot in slots:
            slot.view()[:] = bytes(PIECE_BYTES)
        workers = [threading.Thread(target=work, args=(slots[i::2],)) for i in range(2)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return total / (time.perf_counter() - began)
