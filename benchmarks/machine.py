"""What the benchmarks share: memory control groups, the machine's name, bare reads of the disk."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flexinfer.memory.arena import Arena
from flexinfer.streaming.probe import DEPTHS
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


@contextmanager
def held_disk(path: Path, bytes_per_s: int) -> Iterator[None]:
    """This process and those that it starts read the path's disk at this rate at most, by the
    kernel's own throttling (cgroup version 1; needs root): a shared disk's moods do not count then.
    """
    group = CGROUPS / f"blkio/flexinfer-{os.getpid()}"
    if not group.parent.exists():
        raise SystemExit(
            f"{group.parent} is not there: holding a disk's rate needs cgroup v1's blkio"
        )
    device = path.stat().st_dev
    before = _blkio_group()
    group.mkdir()
    try:
        rule = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
        (group / "blkio.throttle.read_bps_device").write_text(rule)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _blkio_group() -> Path:
    """Of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    place = next(line.split(":", 2)[2] for line in lines if "blkio" in line.split(":")[1])
    return CGROUPS / "blkio" / place.lstrip("/")


def forget(path: Path) -> None:
    """Take a file out of the page cache, where another group's pages of it would come for free."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


class RunFailed(SystemExit):
    """A command failed; it ends a script that does not catch it."""


def run_json(
    command: Sequence[str], group: Path | None = None, timeout_s: float | None = None
) -> dict[str, Any]:
    """Run a command, in a group where one is given; its last line of output is a JSON object.

    Raises RunFailed for a command that fails, or takes longer than `timeout_s`.
    """

    def enter() -> None:
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        done = subprocess.run(
            command,
            preexec_fn=enter,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{' '.join(command)}\nno result in {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise RunFailed(f"{' '.join(command)}\nexit {done.returncode}\n{done.stderr[-2000:]}")
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


def bare_bandwidth(path: Path, size_bytes: int = 1 << 30, offset_bytes: int = 0) -> float:
    """Bytes/s of bare direct reads into memory that has been touched before, as many at once as an
    engine has at most.

    They begin at `offset_bytes`, whole turns of the file taken off, and go on at its start.
    """
    with closing(Reader(path)) as reader, closing(Arena(64 * MiB)) as arena:
        region = arena.take(64 * MiB, 4096)
        threads = max(DEPTHS)
        slots = [region.part(i * PIECE_BYTES, PIECE_BYTES) for i in range(2 * threads)]
        file_bytes = path.stat().st_size // PIECE_BYTES * PIECE_BYTES
        total = min(size_bytes // PIECE_BYTES * PIECE_BYTES, file_bytes)
        first = offset_bytes // PIECE_BYTES * PIECE_BYTES
        starts = iter(range(first, first + total, PIECE_BYTES))
        lock = threading.Lock()

        def work(own: Sequence[Any]) -> None:
            for count in range(1 << 30):
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                with own[count % len(own)].view() as memory:
                    reader.read(start % file_bytes, PIECE_BYTES, memory)

        for slot in slots:
            slot.view()[:] = bytes(PIECE_BYTES)
        workers = [threading.Thread(target=work, args=(slots[i::threads],)) for i in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return total / (time.perf_counter() - began)
