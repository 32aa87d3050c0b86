"""The requests of a sweep, sweep after sweep: brought ahead by threads, or each when asked for.

What brings a request is a source: a file here, host memory for a device (`streaming.link`).
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from flexinfer.planner.placement import Request
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring, Slot


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Totals since the stream was made."""

    read_bytes: int  # from the source; of a file with the blocks around payloads
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


class Source(Protocol):
    """Where a sweep's requests come from. Threads may load different ones at the same time."""

    @property
    def requests(self) -> int:
        """How many a sweep has."""
        ...

    @property
    def moved_bytes(self) -> int:
        """Loaded so far."""
        ...

    def load(self, sequence: int, slot: Slot) -> int:
        """Bring a request into a slot: number `sequence` since the stream began, over all sweeps.
        Returns the address of its payload. Raises ReadError.
        """
        ...

    def check(self) -> None:
        """At the last take of a sweep: raises ReadError where nothing may come of it."""
        ...


class Interrupted(Exception):
    """A take that waits no longer: the stream was interrupted from another thread."""


class _Loaded(NamedTuple):
    sequence: int  # request index + sweep * requests
    slot: Slot
    address: int  # of the payload
    failed: bool


class Ahead:
    """Stream that keeps the ring full from threads of its own, across the end of a sweep too.

    A thread first acquires a slot and then the next request, so requests in flight are always the
    next ones in order and a ring of one slot still makes progress. Without `wrap`, one sweep.
    """

    def __init__(
        self,
        source: Source,
        ring: Ring,
        threads: int = 2,
        wrap: bool = True,
    ) -> None:
        self._source = source
        self._requests = source.requests
        self._ring = ring
        self._thread_count = threads
        self._wrap = wrap
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._generation = 0  # of threads; older ones end
        self._meter = _Meter(source)
        self._start()

    def take(self, request_index: int) -> int:
        count = self._requests
        assert request_index == self._taken % count and request_index not in self._held
        self._meter.found(len(self._loaded) + self._done.qsize())
        while self._taken not in self._loaded:
            if self._done.empty():
                started = time.perf_counter()
                loaded = self._done.get()
                self._meter.stall_s += time.perf_counter() - started
            else:
                loaded = self._done.get()
            if loaded is None:
                raise Interrupted
            self._loaded[loaded.sequence] = loaded
        loaded = self._loaded[self._taken]
        address = loaded.address
        if loaded.failed:  # then, ahead of its time; what counts is whether it can be read now
            address = self._source.load(self._taken, loaded.slot)
        if request_index == count - 1:
            self._source.check()
            self._meter.sweeps += 1
        self._held[request_index] = loaded.slot
        del self._loaded[self._taken]
        self._taken += 1
        return address

    def release(self, request_index: int) -> None:
        self._ring.release(self._held.pop(request_index))

    def interrupt(self) -> None:
        """From any thread: a take that waits raises Interrupted. `rewind` or `close` follows."""
        self._done.put(None)

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
        self._done: SimpleQueue[_Loaded | None] = SimpleQueue()
        self._loaded: dict[int, _Loaded] = {}  # taken off `_done` before their turn
        self._held: dict[int, Slot] = {}
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
                if not self._wrap and sequence >= self._requests:
                    return
                self._claimed += 1
            try:
                address, failed = self._source.load(sequence, slot), False
            except Exception:  # `take` loads it again, and meets what lasts
                address, failed = 0, True
            self._done.put(_Loaded(sequence, slot, address, failed))


class Serial:
    """Stream that loads a request when it is taken: the paper's synchronous baseline."""

    def __init__(self, source: Source, ring: Ring) -> None:
        self._source = source
        self._requests = source.requests
        self._ring = ring
        self._meter = _Meter(source)
        self._held: dict[int, Slot] = {}
        self._taken = 0
        ring.reset()

    def take(self, request_index: int) -> int:
        assert request_index == self._taken % self._requests and request_index not in self._held
        slot = self._ring.acquire()
        assert slot is not None
        self._held[request_index] = slot
        started = time.perf_counter()
        address = self._source.load(self._taken, slot)
        self._meter.stall_s += time.perf_counter() - started
        self._meter.found(0)
        self._taken += 1
        if self._taken % self._requests == 0:
            self._source.check()
            self._meter.sweeps += 1
        return address

    def release(self, request_index: int) -> None:
        self._ring.release(self._held.pop(request_index))

    def interrupt(self) -> None:
        """Nothing waits here."""

    def rewind(self) -> None:
        self._ring.reset()
        self._held.clear()
        self._taken = 0

    @property
    def stats(self) -> StreamStats:
        return self._meter.stats

    def close(self) -> None:
        self._ring.abort()


class _Meter:
    """What both streams count, by the thread that takes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._moved_before_bytes = source.moved_bytes
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
            read_bytes=self._source.moved_bytes - self._moved_before_bytes,
            stall_s=self.stall_s,
            takes=self.takes,
            sweeps=self.sweeps,
            depth=self._found / max(1, self.takes),
        )


@dataclass(frozen=True, slots=True)
class Files:
    """Requests that are read from files. A file that changes in the course of a sweep ends it."""

    of_sweep: Sequence[Request]
    readers: Mapping[Path, Reader]

    @property
    def requests(self) -> int:
        return len(self.of_sweep)

    @property
    def moved_bytes(self) -> int:
        return sum(reader.read_bytes for reader in self.readers.values())

    def load(self, sequence: int, slot: Slot) -> int:
        request = self.of_sweep[sequence % len(self.of_sweep)]
        reader = self.readers[request.path]
        return slot.address + reader.read(request.offset_bytes, request.size_bytes, slot.view())

    def check(self) -> None:
        for reader in self.readers.values():
            reader.check()


class Prefetcher(Ahead):
    """Reads files ahead."""

    def __init__(
        self,
        requests: Sequence[Request],
        readers: Mapping[Path, Reader],
        ring: Ring,
        threads: int = 2,
        wrap: bool = True,
    ) -> None:
        super().__init__(Files(requests, readers), ring, threads, wrap)


class SerialStream(Serial):
    """Reads files when asked."""

    def __init__(
        self, requests: Sequence[Request], readers: Mapping[Path, Reader], ring: Ring
    ) -> None:
        super().__init__(Files(requests, readers), ring)
