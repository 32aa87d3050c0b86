"""A torch device's memory: one block, regions in it, and copies into them over the link."""

import ctypes
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flexinfer.errors import BudgetError
from flexinfer.memory.arena import round_up
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.streaming.ring import Slot
from flexinfer.units import format_bytes

Tensor = Any
_TYPES = {"float32": torch.float32, "uint8": torch.uint8, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """A range of a device's arena; the counterpart of memory.arena.Region."""

    address: int
    size_bytes: int
    _bytes: Tensor

    def part(self, start_bytes: int, size_bytes: int) -> "DeviceRegion":
        """The region `start_bytes` into this one."""
        assert start_bytes >= 0 and start_bytes + size_bytes <= self.size_bytes
        data = self._bytes[start_bytes : start_bytes + size_bytes]
        return DeviceRegion(self.address + start_bytes, size_bytes, data)

    def view(self) -> Tensor:
        """The bytes, uint8 [size_bytes]."""
        return self._bytes

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Tensor:
        """A tensor over the first bytes."""
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert size_bytes <= self.size_bytes
        return self._bytes[:size_bytes].view(_TYPES[np.dtype(dtype).name]).view(shape)


class DeviceArena:
    """One block of device memory, handed out once from its start. BudgetError where there is none
    of that size.
    """

    def __init__(self, device: Any, size_bytes: int) -> None:
        self.size_bytes = round_up(size_bytes, BLOCK_BYTES) + BLOCK_BYTES  # to align within
        try:
            data = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise BudgetError(
                f"{device} does not give {format_bytes(self.size_bytes)}: {error}",
                "use a smaller --vram",
            ) from error
        self._bytes = data[-data.data_ptr() % BLOCK_BYTES :]
        self.address = self._bytes.data_ptr()
        self.used_bytes = 0
        # On CUDA copies have a stream of their own. One into a slot waits for the computing that
        # was asked for when the slot was given back.
        self._copies = torch.cuda.Stream(device) if self._bytes.is_cuda else None
        self._read_until: dict[int, Any] = {}  # slot's address → event

    def take(self, size_bytes: int, alignment: int = 64) -> DeviceRegion:
        """The next `size_bytes`, aligned."""
        start = round_up(self.used_bytes, alignment)
        assert start + size_bytes <= len(self._bytes)
        self.used_bytes = start + size_bytes
        return DeviceRegion(self.address + start, size_bytes, self._bytes[start : self.used_bytes])

    def bytes_at(self, address: int, size_bytes: int) -> Tensor:
        """uint8 [size_bytes], a view."""
        start = address - self.address
        assert start >= 0 and start + size_bytes <= self.used_bytes
        return self._bytes[start : start + size_bytes]

    def copy(
        self, address: int, size_bytes: int, slot: Slot, given_up: Event | None = None
    ) -> None:
        """From host memory into a slot; returns when it is there, given up or not. From any
        thread.
        """
        target, source = slot.view()[:size_bytes], host_bytes(address, size_bytes)
        if self._copies is None:
            target.copy_(source)
            return
        with torch.cuda.stream(self._copies):
            if event := self._read_until.pop(slot.address, None):
                self._copies.wait_event(event)
            target.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        done.synchronize()

    def used(self, address: int) -> None:
        """What was asked of the device so far is all that reads the slot at this address."""
        if self._copies is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._bytes.device))
            self._read_until[address] = event


def host_bytes(address: int, size_bytes: int) -> Tensor:
    """Host memory at an address that the caller vouches for, as a tensor over it."""
    memory = memoryview((ctypes.c_ubyte * size_bytes).from_address(address))
    return torch.from_numpy(np.frombuffer(memory, np.uint8))
