"""The fixed staging memory that requests land in: equal slots, freed in any order."""

from queue import SimpleQueue
from typing import Any, Protocol, Self

from flexinfer.planner.placement import BLOCK_BYTES


class Slot(Protocol):
    """A range of memory, the host's or a device's."""

    @property
    def address(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def part(self, start_bytes: int, size_bytes: int) -> Self: ...

    def view(self) -> Any:
        """The bytes, to be written to."""
        ...


class Ring:
    """Slots of `slot_bytes` carved from a region that is aligned to BLOCK_BYTES.

    Any thread may acquire and release. The queue's C code makes both about a microsecond.
    """

    def __init__(self, region: Slot, slot_bytes: int) -> None:
        assert region.address % BLOCK_BYTES == 0 and slot_bytes % BLOCK_BYTES == 0
        self.slot_bytes = slot_bytes
        starts = range(0, region.size_bytes - slot_bytes + 1, slot_bytes)
        self.slots = tuple(region.part(start, slot_bytes) for start in starts)
        assert self.slots
        self.reset()

    def reset(self) -> None:
        """Make every slot free. Nobody may hold one or wait for one."""
        self._aborted = False
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        for slot in self.slots:
            self._free.put(slot)

    def acquire(self) -> Slot | None:
        """A free slot, waiting for one; None once `abort` was called."""
        slot = self._free.get()
        if slot is None or self._aborted:
            self._free.put(None)  # wakes the next one that waits
            return None
        return slot

    def release(self, slot: Slot) -> None:
        self._free.put(slot)

    def abort(self) -> None:
        """Send away all who wait for a slot, and all who come, until `reset`."""
        self._aborted = True
        self._free.put(None)
