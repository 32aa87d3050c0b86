"""Host → device: the same streams over the link, and disk → host → device as one pipeline.

What a device's layers need goes over the link in transfers: rows locked in host memory, in their
interleaved form, or a request that the disk's stream has just brought, as it is in the file. Both
processors take the disk's requests, in the order of the sweep.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flexinfer.planner.device import LINK_THREADS
from flexinfer.streaming.prefetcher import Ahead, Interrupted, Serial, Stream, StreamStats
from flexinfer.streaming.ring import Ring, Slot


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy over the link into one slot of the device: of host memory at `address`, or of the
    disk's request.
    """

    size_bytes: int
    address: int = 0
    request: int | None = None


class Copier(Protocol):
    """What moves bytes to a device."""

    def copy(
        self, address: int, size_bytes: int, slot: Slot, given_up: threading.Event | None = None
    ) -> None:
        """From host memory into the slot; returns when they have left the host's. Once `given_up`
        is set nobody needs them, and who only waits need not.
        """
        ...


class Interruptible(Stream, Protocol):
    def interrupt(self) -> None: ...


class SharedStream:
    """A stream that several threads take from, each request by one of them, in the sweep's order:
    who comes early waits for the others. `requests` are the numbers that its requests go by; sweeps
    count from the last rewind.
    """

    def __init__(self, stream: Interruptible, requests: Sequence[int]) -> None:
        self._stream = stream
        self._places = {request: place for place, request in enumerate(requests)}
        self._turn = threading.Condition()
        self._next = 0
        self._interrupted = False

    @property
    def sweep(self) -> int:
        """The one that the next request is of."""
        return self._next // len(self._places)

    def take(self, request_index: int, sweep: int) -> int:
        """Raises Interrupted where `interrupt` was called, until `rewind`."""
        index = self._places[request_index]
        place = sweep * len(self._places) + index
        with self._turn:
            self._turn.wait_for(lambda: self._interrupted or self._next >= place)
            if self._interrupted:
                raise Interrupted
            assert self._next == place
        address = self._stream.take(index)
        with self._turn:
            self._next += 1
            self._turn.notify_all()
        return address

    def release(self, request_index: int) -> None:
        self._stream.release(self._places[request_index])

    def interrupt(self) -> None:
        """Let go all who wait in `take`, and who come to it."""
        with self._turn:
            self._interrupted = True
            self._turn.notify_all()
        self._stream.interrupt()

    def rewind(self) -> None:
        """Nobody may be in `take`."""
        self._stream.rewind()
        self._next = 0
        self._interrupted = False

    @property
    def stats(self) -> StreamStats:
        return self._stream.stats

    def close(self) -> None:
        self._stream.close()


class LinkSource:
    """A sweep's transfers as what a stream loads."""

    def __init__(
        self,
        transfers: Sequence[Transfer],
        copier: Copier,
        disk: SharedStream | None,
        given_up: threading.Event,
    ) -> None:
        self._transfers = transfers
        self._copier = copier
        self._disk = disk
        self._given_up = given_up
        self._first_sweep = disk.sweep if disk else 0
        self._lock = threading.Lock()
        self.moved_bytes = 0

    @property
    def requests(self) -> int:
        return len(self._transfers)

    def load(self, sequence: int, slot: Slot) -> int:
        sweep, index = divmod(sequence, len(self._transfers))
        transfer = self._transfers[index]
        if transfer.request is None:
            self._copier.copy(transfer.address, transfer.size_bytes, slot, self._given_up)
        else:
            assert self._disk is not None
            address = self._disk.take(transfer.request, self._first_sweep + sweep)
            try:
                self._copier.copy(address, transfer.size_bytes, slot, self._given_up)
            finally:
                self._disk.release(transfer.request)
        with self._lock:
            self.moved_bytes += transfer.size_bytes
        return slot.address

    def check(self) -> None:
        """The disk's stream checks its files."""


@dataclass(frozen=True, slots=True)
class PhaseStreams:
    """What a phase's sweeps need: transfers to the device, and requests from the disk by number."""

    transfers: Sequence[Transfer]
    requests: Sequence[int]


class Pipeline:
    """Both links of a run: itself the device's stream, `disk` the host's. Rewinding either rewinds
    both.

    `read` makes the disk's stream of some requests; one is alive at a time.
    """

    def __init__(
        self,
        phases: Mapping[str, PhaseStreams],
        copier: Copier,
        ring: Ring | None,
        read: Callable[[Sequence[int]], Interruptible],
        *,
        prefetch: bool,
    ) -> None:
        self._phases = phases
        self._copier = copier
        self._ring = ring
        self._read = read
        self._prefetch = prefetch
        self._phase: str | None = None
        self._shared: SharedStream | None = None
        self._host_sweeps: Counter[int] = Counter()  # by request, since the disk's stream began
        self._link: Ahead | Serial | None = None
        self._given_up = threading.Event()  # the present link's transfers
        self._stall_s = 0.0  # but for the present link's
        self._moved_bytes = 0

    @property
    def disk(self) -> "HostEnd":
        """The disk's stream as the host's layers take from it."""
        return HostEnd(self)

    def enter(self, phase: str) -> None:
        """The next sweep is of this phase. What was brought ahead for another is dropped, unless
        the disk gives the same to the host in both.
        """
        if phase == self._phase:
            return
        before = self._phases[self._phase].requests if self._phase else ()
        requests = self._phases[phase].requests
        untouched = self._link is None
        self._stop()
        if not untouched or requests != before:
            self._close_disk()
            self._shared = SharedStream(self._read(requests), requests) if requests else None
            self._host_sweeps.clear()
        self._phase = phase
        self._start()

    def take(self, request_index: int) -> int:
        assert self._link is not None
        return self._link.take(request_index)

    def release(self, request_index: int) -> None:
        assert self._link is not None
        self._link.release(request_index)

    def rewind(self) -> None:
        self._given_up.set()
        self._stop()
        if self._shared is not None:
            self._shared.rewind()
            self._host_sweeps.clear()
        self._start()

    def take_for_host(self, request_index: int) -> int:
        """A request of the disk's."""
        assert self._shared is not None
        started = time.perf_counter()
        address = self._shared.take(request_index, self._host_sweeps[request_index])
        self._host_sweeps[request_index] += 1
        self._stall_s += time.perf_counter() - started
        return address

    def release_for_host(self, request_index: int) -> None:
        assert self._shared is not None
        self._shared.release(request_index)

    @property
    def stall_s(self) -> float:
        """That layers waited: the device's for the link, the host's for the disk."""
        return self._stall_s + (self._link.stats.stall_s if self._link else 0.0)

    @property
    def moved_bytes(self) -> int:
        """Over the link, to the device."""
        return self._moved_bytes + (self._link.stats.read_bytes if self._link else 0)

    @property
    def stats(self) -> StreamStats:
        assert self._link is not None
        return self._link.stats

    def close(self) -> None:
        self._given_up.set()
        self._stop()
        self._close_disk()

    def _start(self) -> None:
        transfers = self._phases[self._phase].transfers if self._phase else ()
        if not transfers:
            return
        assert self._ring is not None
        self._given_up = threading.Event()
        source = LinkSource(transfers, self._copier, self._shared, self._given_up)
        if self._prefetch:
            self._link = Ahead(source, self._ring, LINK_THREADS)
        else:
            self._link = Serial(source, self._ring)

    def _stop(self) -> None:
        """End the link's stream; the disk's is then rewound or closed."""
        if self._link is None:
            return
        if self._shared is not None:
            self._shared.interrupt()  # the link's threads may be waiting for it
        self._link.close()
        stats = self._link.stats
        self._stall_s += stats.stall_s
        self._moved_bytes += stats.read_bytes
        self._link = None

    def _close_disk(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


@dataclass(frozen=True, slots=True)
class HostEnd:
    """The disk's stream as the host's layers see it."""

    pipeline: Pipeline

    def take(self, request_index: int) -> int:
        return self.pipeline.take_for_host(request_index)

    def release(self, request_index: int) -> None:
        self.pipeline.release_for_host(request_index)

    def rewind(self) -> None:
        self.pipeline.rewind()

    @property
    def stats(self) -> StreamStats:
        return self.pipeline.stats

    def close(self) -> None:
        self.pipeline.close()
