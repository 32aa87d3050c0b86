"""An emulated accelerator: torch's CPU device behind a throttled link, in a capped memory, no
operation faster than the rates of the device that it stands for.

What it computes is what the stand-in `cpu` computes, to the bit; only time differs. Products and
attention take what the estimator says of them, their real time inside; other operations their real
time. Where this processor is slower than the rates, it takes longer than the emulated one would.
"""

import time
import weakref
from collections.abc import Iterator, Sequence
from threading import Event
from typing import Any

import numpy as np
import torch

from flexinfer.errors import BudgetError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Input, Span
from flexinfer.ops.pace import Pace, Way, sleep_until
from flexinfer.ops.torch import Activations, DeviceCache, Rows, TorchOps
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.ops.torch_memory import DeviceArena, DeviceRegion
from flexinfer.ops.torch_weights import Memory
from flexinfer.planner.estimator import Work, device_attention, device_product
from flexinfer.planner.hardware import Device
from flexinfer.planner.sizes import KV_TYPES, PAGE_TOKENS
from flexinfer.streaming.prefetcher import Stream, StreamStats
from flexinfer.streaming.ring import Slot
from flexinfer.units import format_bytes

Tensor = Any
_CPU = torch.device("cpu")
_KV_NAMES = {torch.float16: "f16", torch.float32: "f32"}


class EmulatedLink:
    """Both directions; whoever calls waits until the bytes would have arrived, or were given up."""

    def __init__(self, rates: Device) -> None:
        self._rates = rates
        self._there, self._back = Way(), Way()

    def to_device(self, size_bytes: int, asked_at: float, given_up: Event | None = None) -> None:
        self._there.pass_after(asked_at, self._rates.to_device.seconds(size_bytes), given_up)

    def to_host(self, size_bytes: int, asked_at: float, given_up: Event | None = None) -> None:
        self._back.pass_after(asked_at, self._rates.to_host.seconds(size_bytes), given_up)


class EmulatedArena(DeviceArena):
    """Memory behind the link."""

    def __init__(self, size_bytes: int, link: EmulatedLink, pace: Pace) -> None:
        super().__init__(_CPU, size_bytes)
        self._link = link
        self._pace = pace

    def copy(
        self, address: int, size_bytes: int, slot: Slot, given_up: Event | None = None
    ) -> None:
        asked_at = time.perf_counter()
        super().copy(address, size_bytes, slot)
        self._link.to_device(size_bytes, asked_at, given_up)

    def used(self, address: int) -> None:
        """A real device lets its host run ahead and its copies wait; here all wait at once."""
        self._pace.wait()


class EmulatedDevice:
    """Open under `name`, with the rates and the memory of `emulates`."""

    stand_in = True  # its memory is the host's in truth
    runtime_bytes = 0

    def __init__(self, name: str, emulates: Device, activations: Activations = "float") -> None:
        self.name = name
        self.emulates: Device | None = emulates
        self._rates = emulates
        self._cpu = TorchDevice(_CPU.type)
        self._activations = activations
        self._pace = Pace()
        self._link = EmulatedLink(emulates)
        self._taken_bytes = 0

    @property
    def free_bytes(self) -> int | None:
        return self._rates.memory_bytes - self._taken_bytes

    def arena(self, size_bytes: int) -> EmulatedArena:
        """Raises BudgetError beyond the memory of what is emulated."""
        left_bytes = self._rates.memory_bytes - self._taken_bytes
        if size_bytes > left_bytes:
            raise BudgetError(
                f"{self.name} does not give {format_bytes(size_bytes)} ({size_bytes} bytes): "
                f"{format_bytes(left_bytes)} ({left_bytes} bytes) are left",
                "use a smaller --vram",
            )
        arena = EmulatedArena(size_bytes, self._link, self._pace)
        self._taken_bytes += size_bytes
        weakref.finalize(arena, self._given_back, size_bytes)
        return arena

    def page_lock(self, address: int, size_bytes: int) -> bool:
        return True  # all memory is the same

    def page_unlock(self, address: int) -> None: ...

    def synchronise(self) -> None:
        self._pace.wait()

    def cache(
        self,
        spec: ModelSpec,
        regions: Sequence[tuple[DeviceRegion, DeviceRegion]],
        tokens: int,
        kv_type: str,
    ) -> DeviceCache:
        return self._cpu.cache(spec, regions, tokens, kv_type)

    def ops(
        self,
        spec: ModelSpec,
        memory: Memory,
        cache: DeviceCache | None,
        embedding: Rows | None,
        stream: Stream | None,
    ) -> "EmulatedOps":
        paced = None if stream is None else _PacedStream(stream, self._pace)
        return EmulatedOps(
            self._rates,
            self._pace,
            self._link,
            spec,
            memory,
            cache or DeviceCache((), ()),
            embedding,
            paced,
            self._activations,
        )

    def _given_back(self, size_bytes: int) -> None:
        self._taken_bytes -= size_bytes


class _PacedStream:
    """A stream for which waiting is not computing."""

    def __init__(self, stream: Stream, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace

    def take(self, request_index: int) -> int:
        asked_at = time.perf_counter()
        address = self._stream.take(request_index)
        self._pace.pass_over(time.perf_counter() - asked_at)
        return address

    def release(self, request_index: int) -> None:
        self._stream.release(request_index)

    def rewind(self) -> None:
        self._stream.rewind()

    @property
    def stats(self) -> StreamStats:
        return self._stream.stats

    def close(self) -> None:
        self._stream.close()


class EmulatedOps(TorchOps):
    """Each operation of the stand-in, and what it is charged; what leaves the device waits until it
    is due.
    """

    def __init__(
        self,
        rates: Device,
        pace: Pace,
        link: EmulatedLink,
        spec: ModelSpec,
        memory: Memory,
        cache: DeviceCache,
        embedding: Rows | None,
        stream: Stream | None,
        activations: Activations,
    ) -> None:
        super().__init__(_CPU, spec, memory, cache, embedding, stream, activations=activations)
        self._rates = rates
        self._pace = pace
        self._link = link
        self._given_up = Event()  # of the sweep under way

    def _product(self, matrix: BoundMatrix, x: Tensor, weights: Tensor) -> Tensor:
        y = super()._product(matrix, x, weights)
        kind = BLOCK_TYPES[matrix.type_id]
        cost = device_product(kind, len(weights), matrix.columns, self._rates, len(x))
        self._pace.charge(cost.total_s)
        return y

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        layer: int,
        spans: Sequence[Span],
        window_tokens: int | None,
    ) -> None:
        super().attention(q, k, v, out, layer, spans, window_tokens)
        (span,) = spans
        kv_type = KV_TYPES[_KV_NAMES[self._cache.keys[layer].dtype]]
        work = Work(span.count, span.start + span.count, kv_type)
        self._pace.charge(device_attention(self._spec, window_tokens, self._rates, work).total_s)

    def embed(self, tokens: Sequence[int], factor: float, out: Tensor) -> None:
        asked_at = time.perf_counter()
        super().embed(tokens, factor, out)
        self._arrive(out.nbytes, asked_at)

    def rope_angles(
        self,
        frequencies: np.ndarray[Any, Any],
        positions: np.ndarray[Any, Any],
        magnitude: float,
        out: Tensor,
    ) -> None:
        asked_at = time.perf_counter()
        super().rope_angles(frequencies, positions, magnitude, out)
        self._arrive(out.nbytes, asked_at)

    def receive(self, values: np.ndarray[Any, Any], out: Tensor) -> None:
        asked_at = time.perf_counter()
        super().receive(values, out)
        self._arrive(out.nbytes, asked_at)

    def give(self, x: Tensor, out: np.ndarray[Any, Any]) -> None:
        self._pace.wait()
        asked_at = time.perf_counter()
        super().give(x, out)
        self._link.to_host(out.nbytes, asked_at)

    def slabs(
        self, matrix: BoundMatrix, x: Input, out: np.ndarray[Any, Any]
    ) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        for row, slab in super().slabs(matrix, x, out):
            self._pace.wait()
            self._link.to_host(slab.nbytes, time.perf_counter())
            yield row, slab
            self._pace.begin()

    def cache_page(self, layer: int, address: int, page: int, first: int, last: int) -> None:
        asked_at = time.perf_counter()
        super().cache_page(layer, address, page, first, last)
        keys = self._cache.keys[layer]
        page_bytes = 2 * PAGE_TOKENS * keys.shape[0] * keys.shape[2] * keys.element_size()
        self._arrive(page_bytes, asked_at)

    def reached(self) -> Any:
        return self._pace.due_at, self._given_up

    def cached(self, layer: int, first: int, last: int, reached: Any) -> tuple[Any, Any]:
        due_at, given_up = reached
        sleep_until(due_at, given_up)
        asked_at = time.perf_counter()
        both = super().cached(layer, first, last, None)
        keys = self._cache.keys[layer]
        size_bytes = 2 * keys[:, first:last].numel() * keys.element_size()
        self._link.to_host(size_bytes, asked_at, given_up)
        self._pace.begin()
        return both

    def abandon_sweep(self) -> None:
        self._given_up.set()
        self._given_up = Event()
        super().abandon_sweep()
        self._pace.begin()

    def _arrive(self, size_bytes: int, asked_at: float) -> None:
        self._link.to_device(size_bytes, asked_at)
        self._pace.begin()
