"""Direct reads, what replaces them where they are refused, and every way in which a read fails."""

import errno
import fcntl
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from itertools import count
from pathlib import Path

import pytest

from flexinfer.errors import ReadError
from flexinfer.memory.arena import Arena
from flexinfer.planner.disk import Disk
from flexinfer.streaming.probe import measure_reader, probe_disk
from flexinfer.streaming.reader import BLOCK_BYTES, PIECE_BYTES, Reader, enclosing_bytes
from flexinfer.units import MiB
from mounts import Mounts
from streaming_tools import faulty, write_random

SIZE = 9 * MiB + 1234


@pytest.fixture(scope="module")
def memory() -> Iterator[memoryview]:
    yield Arena(16 * MiB).take(16 * MiB, BLOCK_BYTES).view()


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "weights"
    return path, write_random(path, SIZE)


def read(reader: Reader, memory: memoryview, offset: int, size: int) -> bytes:
    start = reader.read(offset, size, memory)
    return bytes(memory[start : start + size])


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 1),
        (0, 4096),
        (4095, 2),
        (5, 4 * MiB),
        (4096, 4 * MiB),
        (123, SIZE - 123),  # several pieces, to the very end
        (SIZE - 1, 1),
        (SIZE - 5000, 5000),
    ],
)
def test_any_range_is_read_as_it_is(
    file: tuple[Path, bytes], memory: memoryview, offset: int, size: int
) -> None:
    path, data = file
    with closing(Reader(path)) as reader:
        assert read(reader, memory, offset, size) == data[offset : offset + size]
        assert reader.direct
        blocks = enclosing_bytes(offset, size)
        assert reader.read_bytes == min(blocks, SIZE - offset // BLOCK_BYTES * BLOCK_BYTES)


def test_a_full_request_with_ragged_ends_is_one_call(
    file: tuple[Path, bytes], memory: memoryview
) -> None:
    path, data = file
    calls: list[int] = []
    pread = faulty(os.preadv, lambda offset, length: calls.append(length))
    with closing(Reader(path, pread)) as reader:
        assert read(reader, memory, 4000, 4 * MiB) == data[4000 : 4000 + 4 * MiB]
    assert calls == [PIECE_BYTES - BLOCK_BYTES]


def test_reads_leave_the_page_cache_alone(tmp_path: Path, memory: memoryview) -> None:
    path = tmp_path / "cold"
    data = write_random(path, 2 * MiB)
    with path.open("rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert cached_bytes(path) == 0
    with closing(Reader(path)) as reader:
        assert read(reader, memory, 0, 2 * MiB) == data
    assert cached_bytes(path) == 0


def cached_bytes(path: Path) -> int:
    found = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


def refuse_first_read(file: int, buffers: list[memoryview], offset: int) -> int:
    """os.preadv of a file system that takes O_DIRECT when opening and then does not mean it."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
        raise OSError(errno.EINVAL, "Invalid argument")
    return os.preadv(file, buffers, offset)


def test_refused_at_the_first_read(
    file: tuple[Path, bytes], memory: memoryview, caplog: pytest.LogCaptureFixture
) -> None:
    path, data = file
    with caplog.at_level(logging.WARNING), closing(Reader(path, refuse_first_read)) as reader:
        for offset in (0, 5000, SIZE - 7):
            size = min(MiB, SIZE - offset)
            assert read(reader, memory, offset, size) == data[offset : offset + size]
        assert not reader.direct
    assert [r.message for r in caplog.records] == [
        f"{path}: no direct I/O on this file system; reads are buffered"
    ]


def test_buffered_reads_drop_their_pages(tmp_path: Path, memory: memoryview) -> None:
    path = tmp_path / "dropped"
    data = write_random(path, 8 * MiB)
    with path.open("rb") as f:
        os.fsync(f.fileno())
    with closing(Reader(path, refuse_first_read)) as reader:
        assert read(reader, memory, 0, 8 * MiB) == data
    assert cached_bytes(path) <= MiB


@pytest.mark.parametrize("kind", ["ramfs", "tmpfs"])
def test_in_memory_file_systems(
    mounts: Mounts, memory: memoryview, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = mounts.memory(kind) / "weights"
    data = write_random(path, SIZE)
    with closing(Reader(path)) as reader:
        assert read(reader, memory, 4097, 5 * MiB) == data[4097 : 4097 + 5 * MiB]
        assert read(reader, memory, SIZE - 9, 9) == data[-9:]
        # Whether tmpfs takes O_DIRECT depends on the kernel; ramfs never does.
        assert kind == "tmpfs" or not reader.direct
        assert len(caplog.records) == (not reader.direct)


def test_overlay(mounts: Mounts, tmp_path: Path, memory: memoryview) -> None:
    (tmp_path / "lower").mkdir()
    data = write_random(tmp_path / "lower/weights", SIZE)
    with closing(Reader(mounts.overlay(tmp_path / "lower") / "weights")) as reader:
        assert read(reader, memory, 100, MiB) == data[100 : 100 + MiB]
        reader.check()


def test_odd_names_links_and_read_only_files(tmp_path: Path, memory: memoryview) -> None:
    folder = tmp_path / "my models – für 日本"
    folder.mkdir()
    data = write_random(folder / "größe 7b.gguf", MiB)
    (folder / "größe 7b.gguf").chmod(0o400)
    link = tmp_path / "link"
    link.symlink_to(folder / "größe 7b.gguf")
    for path in (folder / "größe 7b.gguf", link):
        with closing(Reader(path)) as reader:
            assert read(reader, memory, 10, 1000) == data[10:1010]
            reader.check()


def test_a_relative_path_survives_a_change_of_folder(
    tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_random(tmp_path / "weights", MiB)
    monkeypatch.chdir(tmp_path)
    with closing(Reader(Path("weights"))) as reader:
        monkeypatch.chdir("/")
        reader.check()
        assert read(reader, memory, 0, 10) == data[:10]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_device_is_an_error_of_the_request(
    file: tuple[Path, bytes], memory: memoryview, code: int
) -> None:
    path, data = file
    failures = [code]

    def once(offset: int, length: int) -> None:
        if failures:
            raise OSError(failures.pop(), os.strerror(code))

    with closing(Reader(path, faulty(os.preadv, once))) as reader:
        with pytest.raises(ReadError, match=f"4096 bytes at offset 8192 .*{os.strerror(code)}"):
            reader.read(9000, 10, memory)
        assert read(reader, memory, 9000, 10) == data[9000:9010]


def test_an_interrupted_read_is_repeated(file: tuple[Path, bytes], memory: memoryview) -> None:
    path, data = file
    failures = [errno.EINTR, errno.EINTR]

    def interrupt(offset: int, length: int) -> None:
        if failures:
            raise InterruptedError(failures.pop(), "Interrupted")

    with closing(Reader(path, faulty(os.preadv, interrupt))) as reader:
        assert read(reader, memory, 0, 10) == data[:10]
    assert not failures


def test_a_short_read_before_the_end_is_an_error(
    file: tuple[Path, bytes], memory: memoryview
) -> None:
    path, _ = file
    with (
        closing(Reader(path, faulty(os.preadv, lambda offset, length: 4096))) as reader,
        pytest.raises(ReadError, match="offset 4096: 12288 bytes expected, 4096 got"),
    ):
        reader.read(5000, 9000, memory)


def test_a_range_beyond_the_end_is_an_error(file: tuple[Path, bytes], memory: memoryview) -> None:
    with closing(Reader(file[0])) as reader:
        with pytest.raises(ReadError, match="short read"):
            reader.read(SIZE - 10, 11, memory)
        with pytest.raises(ReadError, match="4096 bytes expected, 0 got"):
            reader.read(SIZE + MiB, 1, memory)


def truncate(path: Path) -> None:
    os.truncate(path, MiB)


def replace(path: Path) -> None:
    new = path.with_name("new")
    write_random(new, SIZE, seed=1)
    new.replace(path)


def overwrite(path: Path) -> None:
    with path.open("r+b") as f:
        f.write(b"other")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (truncate, rf"was replaced, truncated .*\({SIZE} bytes when opened\)"),
        (replace, "was replaced, truncated"),
        (overwrite, "was replaced, truncated"),
        (Path.unlink, "is no longer there: No such file"),
    ],
)
def test_a_file_that_changes_is_noticed(
    file: tuple[Path, bytes], change: Callable[[Path], None], said: str
) -> None:
    path, _ = file
    os.utime(path, ns=(0, 0))
    with closing(Reader(path)) as reader:
        reader.check()
        change(path)
        with pytest.raises(ReadError, match=said):
            reader.check()


def test_a_file_that_shrinks_is_told_at_the_read(
    file: tuple[Path, bytes], memory: memoryview
) -> None:
    path, data = file
    with closing(Reader(path)) as reader:
        truncate(path)
        assert read(reader, memory, 0, 10) == data[:10]
        with pytest.raises(ReadError, match="truncated"):
            reader.read(2 * MiB, 10, memory)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"absent: cannot be opened: No such file"):
        Reader(tmp_path / "absent")


# --- the probe ---


@pytest.mark.parametrize("size", [1, 3 * MiB, SIZE])
def test_the_probe_gives_rates_for_any_size(tmp_path: Path, size: int) -> None:
    write_random(tmp_path / "weights", size)
    disk = probe_disk(tmp_path / "weights", seconds=0.02)
    assert list(disk.bytes_per_s_at) == [1, 2, 4] and min(disk.bytes_per_s_at.values()) > 0
    assert disk.latency_s > 0 and 0 < disk.busy <= 1 and disk.pause_s >= 0


class SlowDisk:
    """Made of time alone: what a read takes, by its size; `shared` lets one pass at a time."""

    def __init__(self, seconds: Callable[[int], float], shared: bool = False) -> None:
        self._seconds = seconds
        self._turn = threading.Lock() if shared else nullcontext()
        self.sizes: list[int] = []

    def __call__(self, file: int, buffers: list[memoryview], offset: int) -> int:
        with self._turn:
            time.sleep(self._seconds(len(buffers[0])))
        self.sizes.append(len(buffers[0]))
        return len(buffers[0])


def probed(disk: SlowDisk, tmp_path: Path, **more: object) -> Disk:
    path = tmp_path / "weights"
    path.touch()
    os.truncate(path, 16 * MiB)
    with closing(Reader(path, disk)) as reader:
        return measure_reader(reader, **more)


def test_the_probe_finds_out_whether_reads_in_flight_pay(tmp_path: Path) -> None:
    alone = probed(SlowDisk(lambda size: 0.05), tmp_path, seconds=0.9).bytes_per_s_at
    assert alone[4] > 2 * alone[1]
    shared = probed(SlowDisk(lambda size: 0.05, shared=True), tmp_path, seconds=0.9).bytes_per_s_at
    assert shared[4] < 2 * shared[1]


def test_a_longer_look_tries_depths_in_turns(tmp_path: Path) -> None:
    """A disk that gets slower by the half meanwhile does so for all of them."""
    slower = time.perf_counter() + 1.0
    disk = SlowDisk(lambda size: 0.004 if time.perf_counter() < slower else 0.008)
    found = probed(disk, tmp_path, depths=(1, 2), seconds=1.8).bytes_per_s_at
    assert found[2] > 1.5 * found[1]


@pytest.mark.parametrize("gb_per_s", [0.1, 0.4, 1.6])
def test_the_probe_reads_no_more_than_a_fifth_of_a_second_allows(
    gb_per_s: float, tmp_path: Path
) -> None:
    disk = SlowDisk(lambda size: size / gb_per_s / 1e9, shared=True)
    probed(disk, tmp_path)
    assert sum(disk.sizes) < 0.2 * gb_per_s * 1e9


def test_the_probe_reads_as_a_sweep_will(tmp_path: Path) -> None:
    disk = SlowDisk(lambda size: 0.0)
    found = probed(disk, tmp_path, request_bytes=MiB // 2, depths=(3,), seconds=0.2)
    assert list(found.bytes_per_s_at) == [3] and found.depth == 3
    assert set(disk.sizes) == {4096, MiB, MiB // 2}


def test_the_probe_sees_a_disk_that_pauses(tmp_path: Path) -> None:
    """Every fourth read takes 100 ms, the others 5: most of the time is lost."""
    turns = count()
    disk = probed(
        SlowDisk(lambda size: 0.1 if next(turns) % 4 == 3 else 0.005),
        tmp_path,
        depths=(1,),
        seconds=0.5,
    )
    assert disk.busy < 0.7
    assert disk.pause_s > 0.05
    assert disk.bytes_per_s < 0.7 * 4 * MiB / 0.005


def test_the_probe_tells_of_a_read_that_failed(tmp_path: Path) -> None:
    def fail(size: int) -> float:
        if size > MiB:
            raise OSError(errno.EIO, "Input/output error")
        return 0.0

    with pytest.raises(ReadError, match="Input/output error"):
        probed(SlowDisk(fail), tmp_path, seconds=60)  # time enough for large reads
