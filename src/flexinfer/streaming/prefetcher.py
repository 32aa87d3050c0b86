"""The requests of a sweep, sweep after sweep: read ahead by threads, or each when asked for."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from flexinfer.memory.arena import Region
from flexinfer.planner.placement import Request
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Totals since the stream was made."""

    read_bytes: int  # from the files, the blocks around payloads included
    stall_s: float  # that `take` waited
    takes: int
    sweeps: int  # completed
    depth: float  # mean number of requests found loaded at a take, its own included


class Stream(Protocol):
    """Weights that pass by. Used by one thread, which takes a sweep's requests in their order.

    The ring needs as many slots as requests are held at once, the one being taken included; one
    more lets reading overlap with computing. After a `take` that failed or was interrupted comes
    `rewind` or `close`.
    """

    def take(self, request_index: int) -> int:
        """Wait for the request; returns the address of its payload. Raises ReadError."""
        ...

    def release(self, request_index: int) -> None:
        """Give the request's slot back; in any order."""
        ...

    def rewind(self) -> None:
        """The sweep is abandoned, with whatever of it is held: request 0 is next."""
        ...

    @property
    def stats(self) -> StreamStats: ...

    def close(self) -> None:
        """End reading; then nothing touches the ring any more. Twice does no harm."""
        ...


class _Loaded(NamedTuple):
    sequence: int  # request index + sweep * requests
    slot: Region
    address: int  # of the payload
    failed: bool


class Prefetcher:
    """Stream that keeps the ring full from threads of its own, across the end of a sweep too.

    A thread first acquires a slot and then the next request, so requests in flight are always the
    next ones in order and a ring of one slot still makes progress. Without `wrap`, one sweep.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        readers: Mapping[Path, Reader],
        ring: Ring,
        threads: int = 2,
        wrap: bool = True,
    ) -> None:
        self._requests = requests
        self._readers = readers
        self._ring = ring
        self._thread_count = threads
        self._wrap = wrap
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._generation = 0  # of threads; older ones end
        self._meter = _Meter(readers)
        self._start()

    def take(self, request_index: int) -> int:
        count = len(self._requests)
        assert request_index == self._taken % count and request_index not in self._held
        self._meter.found(len(self._loaded) + self._done.qsize())
        while self._taken not in self._loaded:
            if self._done.empty():
                started = time.perf_counter()
                loaded = self._done.get()
                self._meter.stall_s += time.perf_counter() - started
            else:
                loaded = self._done.get()
            self._loaded[loaded.sequence] = loaded
        loaded = self._loaded[self._taken]
        address = loaded.address
        if loaded.failed:  # then, ahead of its time; what counts is whether it can be read now
            address = _read(self._requests[request_index], self._readers, loaded.slot)
        if request_index == count - 1:
            _check(self._readers)
            self._meter.sweeps += 1
        self._held[request_index] = loaded.slot
        del self._loaded[self._taken]
        self._taken += 1
        return address

    def release(self, request_index: int) -> None:
        self._ring.release(self._held.pop(request_index))

    def rewind(self) -> None:
        self.close()
        self._start()

    @property
    def stats(self) -> StreamStats:
        return self._meter.stats

    def close(self) -> None:
        # The generation goes first: a thread that had no time to begin sees it and ends.
        self._generation += 1
        self._ring.abort()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _start(self) -> None:
        self._ring.reset()
        self._done: SimpleQueue[_Loaded] = SimpleQueue()
        self._loaded: dict[int, _Loaded] = {}  # taken off `_done` before their turn
        self._held: dict[int, Region] = {}
        self._taken = 0  # sequence number of the next take
        self._claimed = 0  # sequence number of the next read
        self._threads = [
            threading.Thread(
                target=self._work, args=(self._generation,), name="flexinfer-read", daemon=True
            )
            for _ in range(self._thread_count if self._requests else 0)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, generation: int) -> None:
        while generation == self._generation:
            slot = self._ring.acquire()
            if slot is None:
                return
            with self._lock:
                sequence = self._claimed
                if not self._wrap and sequence >= len(self._requests):
                    return
                self._claimed += 1
            request = self._requests[sequence % len(self._requests)]
            try:
                address, failed = _read(request, self._readers, slot), False
            except Exception:  # `take` reads it again, and meets what lasts
                address, failed = 0, True
            self._done.put(_Loaded(sequence, slot, address, failed))


class SerialStream:
    """Stream that reads a request when it is taken: the paper's synchronous baseline."""

    def __init__(
        self, requests: Sequence[Request], readers: Mapping[Path, Reader], ring: Ring
    ) -> None:
        self._requests = requests
        self._readers = readers
        self._ring = ring
        self._meter = _Meter(readers)
        self._held: dict[int, Region] = {}
        self._next = 0
        ring.reset()

    def take(self, request_index: int) -> int:
        assert request_index == self._next and request_index not in self._held
        slot = self._ring.acquire()
        assert slot is not None
        self._held[request_index] = slot
        started = time.perf_counter()
        address = _read(self._requests[request_index], self._readers, slot)
        self._meter.stall_s += time.perf_counter() - started
        self._meter.found(0)
        self._next += 1
        if self._next == len(self._requests):
            _check(self._readers)
            self._next = 0
            self._meter.sweeps += 1
        return address

    def release(self, request_index: int) -> None:
        self._ring.release(self._held.pop(request_index))

    def rewind(self) -> None:
        self._ring.reset()
        self._held.clear()
        self._next = 0

    @property
    def stats(self) -> StreamStats:
        return self._meter.stats

    def close(self) -> None:
        self._ring.abort()


class _Meter:
    """What both streams count, by the thread that takes."""

    def __init__(self, readers: Mapping[Path, Reader]) -> None:
        self._readers = readers
        self._read_before_bytes = self._total_bytes()
        self.stall_s = 0.0
        self.takes = 0
        self.sweeps = 0
        self._found = 0

    def found(self, loaded: int) -> None:
        self.takes += 1
        self._found += loaded

    @property
    def stats(self) -> StreamStats:
        return StreamStats(
            read_bytes=self._total_bytes() - self._read_before_bytes,
            stall_s=self.stall_s,
            takes=self.takes,
            sweeps=self.sweeps,
            depth=self._found / max(1, self.takes),
        )

    def _total_bytes(self) -> int:
        return sum(reader.read_bytes for reader in self._readers.values())


def _read(request: Request, readers: Mapping[Path, Reader], slot: Region) -> int:
    """Read a request into a slot; returns the address of its payload."""
    reader = readers[request.path]
    return slot.address + reader.read(request.offset_bytes, request.size_bytes, slot.view())


def _check(readers: Mapping[Path, Reader]) -> None:
    """At the last take of a sweep: nothing comes of it if a file changed in its course."""
    for reader in readers.values():
        reader.check()
