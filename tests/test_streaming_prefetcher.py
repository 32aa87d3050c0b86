"""The prefetcher against its serial twin, and in every kind of trouble."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import ReadError
from flexinfer.planner.placement import Request
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream, Stream
from flexinfer.streaming.reader import Pread, Reader
from flexinfer.units import MiB
from streaming_tools import faulty, make_ring, payload, write_random

SIZE = 3 * MiB + 777
SLOT = 64 * 1024
LARGEST = SLOT - 2 * 4096
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("stream") / "weights"
    return path, write_random(path, SIZE)


def evenly(path: Path, count: int, size: int = 5000) -> list[Request]:
    return [Request(path, 13 + index * size, size) for index in range(count)]


def jittering(pread: Pread) -> Pread:
    """Lets reads finish in another order than they began in."""

    def read(file: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(random.random() * 5e-4)
        return pread(file, buffers, offset)

    return read


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_as_the_serial_stream_whatever_is_done(
    file: tuple[Path, bytes], data: st.DataObject
) -> None:
    path, contents = file
    size = st.integers(1, LARGEST)
    ends = st.integers(0, 3).flatmap(lambda tail: size.map(lambda n: (SIZE - tail - n, n)))
    anywhere = st.tuples(st.integers(0, SIZE - LARGEST), size)
    ranges = data.draw(st.lists(st.one_of(anywhere, ends), min_size=1, max_size=12))
    requests = [Request(path, offset, n) for offset, n in ranges]
    slots = data.draw(st.integers(1, 5))
    threads = data.draw(st.integers(1, 3))
    with (
        closing(Reader(path, jittering(os.preadv))) as reader,
        closing(Reader(path)) as plain,
        closing(Prefetcher(requests, {path: reader}, make_ring(slots, SLOT), threads)) as ahead,
        closing(SerialStream(requests, {path: plain}, make_ring(slots, SLOT))) as serial,
    ):
        streams: tuple[Stream, Stream] = (ahead, serial)
        held: list[int] = []
        index = 0
        for _ in range(data.draw(st.integers(1, 40))):
            if data.draw(st.integers(0, 9)) == 0:
                for stream in streams:
                    stream.rewind()
                held, index = [], 0
                continue
            while len(held) == slots or index in held:
                gone = held.pop(data.draw(st.integers(0, len(held) - 1)))
                for stream in streams:
                    stream.release(gone)
            request = requests[index]
            expected = contents[request.offset_bytes : request.offset_bytes + request.size_bytes]
            for stream in streams:
                assert payload(stream.take(index), request) == expected
            held.append(index)
            index = (index + 1) % len(requests)
        assert ahead.stats.takes == serial.stats.takes
        assert ahead.stats.sweeps == serial.stats.sweeps
        assert ahead.stats.read_bytes >= serial.stats.read_bytes


def run_sweeps(stream: Stream, requests: list[Request], contents: bytes, sweeps: int) -> None:
    for _ in range(sweeps):
        for index, request in enumerate(requests):
            end = request.offset_bytes + request.size_bytes
            assert payload(stream.take(index), request) == contents[request.offset_bytes : end]
            stream.release(index)


@pytest.mark.parametrize("slots", [1, 2, 16])
@pytest.mark.parametrize("count", [1, 7])
def test_many_sweeps(file: tuple[Path, bytes], slots: int, count: int) -> None:
    path, contents = file
    requests = evenly(path, count)
    with (
        closing(Reader(path)) as reader,
        closing(Prefetcher(requests, {path: reader}, make_ring(slots, SLOT))) as stream,
    ):
        run_sweeps(stream, requests, contents, 50)
        assert stream.stats.sweeps == 50
        assert stream.stats.takes == 50 * count


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_ring_is_filled_and_no_more_and_across_the_end(file: tuple[Path, bytes]) -> None:
    path, _ = file
    offsets: list[int] = []
    pread = faulty(os.preadv, lambda offset, length: offsets.append(offset))
    requests = [Request(path, index * 8192, 8192) for index in range(3)]
    with (
        closing(Reader(path, pread)) as reader,
        closing(Prefetcher(requests, {path: reader}, make_ring(4, SLOT))) as stream,
    ):
        wait_until(lambda: reader.read_bytes == 4 * 8192)
        time.sleep(0.02)
        assert sorted(offsets) == [0, 0, 8192, 16384]
        for index in range(3):
            stream.take(index)
        assert stream.stats.stall_s == 0
        assert stream.stats.depth == pytest.approx((4 + 3 + 2) / 3)
        stream.release(1)
        wait_until(lambda: reader.read_bytes == 5 * 8192)
        assert sorted(offsets) == [0, 0, 8192, 8192, 16384]


def test_one_sweep_without_wrap(file: tuple[Path, bytes]) -> None:
    path, contents = file
    requests = evenly(path, 3)
    with closing(Reader(path)) as reader:
        stream = Prefetcher(requests, {path: reader}, make_ring(8, SLOT), wrap=False)
        with closing(stream):
            run_sweeps(stream, requests, contents, 1)
            time.sleep(0.01)
            assert reader.read_bytes == 3 * 8192


def test_nothing_to_stream() -> None:
    with closing(Prefetcher([], {}, make_ring(1, SLOT))) as stream:
        assert stream.stats.read_bytes == 0


def test_a_stall_is_measured(file: tuple[Path, bytes]) -> None:
    path, _ = file

    def slow(offset: int, length: int) -> None:
        time.sleep(0.03)

    requests = evenly(path, 3)
    with closing(Reader(path, faulty(os.preadv, slow))) as reader:
        for make in (Prefetcher, SerialStream):
            created, taking_s = time.perf_counter(), 0.0
            with closing(make(requests, {path: reader}, make_ring(1, SLOT))) as stream:
                for index in range(3):
                    started = time.perf_counter()
                    stream.take(index)
                    taking_s += time.perf_counter() - started
                    stream.release(index)
                elsewhere_s = time.perf_counter() - created - taking_s  # reading may go on then
                assert 0.08 - elsewhere_s < stream.stats.stall_s <= taking_s


def test_the_consumer_holds_all_but_the_slot_it_waits_for(file: tuple[Path, bytes]) -> None:
    path, contents = file
    requests = evenly(path, 40)
    with (
        closing(Reader(path, jittering(os.preadv))) as reader,
        closing(Prefetcher(requests, {path: reader}, make_ring(3, SLOT), threads=3)) as stream,
    ):
        addresses = {}
        for sweep in range(5):
            for index, request in enumerate(requests):
                addresses[index] = stream.take(index)
                if len(addresses) == 3:
                    gone = random.choice(list(addresses))
                    start = requests[gone].offset_bytes
                    found = payload(addresses.pop(gone), requests[gone])
                    assert found == contents[start : start + request.size_bytes]
                    stream.release(gone)
            for gone in list(addresses):
                stream.release(gone)
                del addresses[gone]
            assert stream.stats.sweeps == sweep + 1


@pytest.mark.parametrize("make", [Prefetcher, SerialStream])
def test_an_error_comes_at_its_take_and_goes_with_rewind(
    file: tuple[Path, bytes], make: Callable[..., Stream]
) -> None:
    path, contents = file
    requests = [Request(path, index * 8192, 8192) for index in range(5)]
    broken = threading.Event()
    broken.set()

    def fault(offset: int, length: int) -> None:
        if offset == 2 * 8192 and broken.is_set():
            raise OSError(5, "Input/output error")

    with (
        closing(Reader(path, faulty(os.preadv, fault))) as reader,
        closing(make(requests, {path: reader}, make_ring(3, SLOT))) as stream,
    ):
        for index in range(2):
            stream.take(index)
        with pytest.raises(ReadError, match="offset 16384"):
            stream.take(2)
        with closing(stream):
            pass  # after an error, closing works; so does beginning again
        stream.rewind()
        for index in range(2):
            stream.take(index)
            stream.release(index)
        with pytest.raises(ReadError):
            stream.take(2)
        broken.clear()
        stream.rewind()
        run_sweeps(stream, requests, contents, 3)


@pytest.mark.parametrize("make", [Prefetcher, SerialStream])
def test_an_error_that_is_over_when_its_turn_comes_is_none(
    file: tuple[Path, bytes], make: Callable[..., Stream]
) -> None:
    """The prefetcher reads long before a sweep begins, perhaps; the serial stream does not."""
    path, contents = file
    requests = evenly(path, 2)
    failed = threading.Event()

    def once(offset: int, length: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(5, "Input/output error")

    with (
        closing(Reader(path, faulty(os.preadv, once))) as reader,
        closing(make(requests, {path: reader}, make_ring(2, SLOT))) as stream,
    ):
        if make is SerialStream:
            failed.set()
        assert failed.wait(30)
        run_sweeps(stream, requests, contents, 2)


@pytest.mark.parametrize("make", [Prefetcher, SerialStream])
def test_a_sweep_over_a_file_that_changed_gives_nothing(
    tmp_path: Path, make: Callable[..., Stream]
) -> None:
    path = tmp_path / "weights"
    write_random(path, MiB)
    os.utime(path, ns=(0, 0))
    requests = evenly(path, 4)
    with (
        closing(Reader(path)) as reader,
        closing(make(requests, {path: reader}, make_ring(2, SLOT))) as stream,
    ):
        for index in range(3):
            stream.take(index)
            stream.release(index)
        with path.open("r+b") as f:
            f.write(b"other weights")
        with pytest.raises(ReadError, match="replaced, truncated or written to"):
            stream.take(3)


def test_ctrl_c_in_take(file: tuple[Path, bytes]) -> None:
    path, contents = file
    requests = evenly(path, 4)
    gate = threading.Event()

    def wait(offset: int, length: int) -> None:
        gate.wait()

    with (
        closing(Reader(path, faulty(os.preadv, wait))) as reader,
        closing(Prefetcher(requests, {path: reader}, make_ring(2, SLOT))) as stream,
    ):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.perf_counter()
        try:
            with pytest.raises(KeyboardInterrupt):
                stream.take(0)
            assert time.perf_counter() - started < 2
        finally:
            timer.join()
            gate.set()  # or closing would wait for the read
        stream.rewind()
        run_sweeps(stream, requests, contents, 2)


def test_interrupts_at_any_moment(file: tuple[Path, bytes]) -> None:
    path, contents = file
    requests = evenly(path, 7)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    with (
        closing(Reader(path, jittering(os.preadv))) as reader,
        closing(Prefetcher(requests, {path: reader}, make_ring(3, SLOT))) as stream,
    ):
        for _ in range(60):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 1e-2))
                while True:
                    run_sweeps(stream, requests, contents, 1)
            stream.rewind()
            run_sweeps(stream, requests, contents, 1)
    signal.signal(signal.SIGALRM, before)


def test_close_ends_the_threads_whatever_they_do(file: tuple[Path, bytes]) -> None:
    path, _ = file
    with closing(Reader(path)) as reader:
        for takes in range(4):
            stream = Prefetcher(evenly(path, 6), {path: reader}, make_ring(2, SLOT), threads=3)
            for index in range(min(takes, 2)):
                stream.take(index)
            stream.close()
            stream.close()
            assert not [t for t in threading.enumerate() if t.name == "flexinfer-read"]


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


BEGIN = """
import sys
from pathlib import Path
from flexinfer.memory.arena import Arena
from flexinfer.memory.budget import peak_resident_bytes, resident_bytes
from flexinfer.planner.placement import Request
from flexinfer.streaming.prefetcher import Prefetcher
from flexinfer.streaming.reader import PIECE_BYTES, Reader
from flexinfer.streaming.ring import Ring
path = Path(sys.argv[1])
requests = [Request(path, start, 4 << 20) for start in range(0, 64 << 20, 4 << 20)]
reader = Reader(path)
before, peak_before = resident_bytes(), peak_resident_bytes()
arena = Arena(4 * PIECE_BYTES)
stream = Prefetcher(requests, {path: reader}, Ring(arena.take(4 * PIECE_BYTES, 4096), PIECE_BYTES))
for index in list(range(16)) * 2:
    stream.take(index)
    stream.release(index)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "weights"
    write_random(path, 64 * MiB)
    yield path
    path.unlink()


def test_memory_stays_within_the_arena(large: Path) -> None:
    end = "peak = peak_resident_bytes(); print(peak - before, peak - peak_before, arena.size_bytes)"
    grown, peak_grown, arena_bytes = map(int, run(BEGIN + end, str(large)).split())
    assert grown > 16 * MiB
    assert peak_grown <= arena_bytes + 2 * MiB  # two threads' stacks and the like


def test_the_interpreter_ends_without_close(large: Path) -> None:
    run(BEGIN, str(large))
