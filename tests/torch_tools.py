"""What torch really takes: every tensor that comes into being, until its memory is given back."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.spec import Layer, ModelSpec
from flexinfer.ops.base import BoundMatrix, BoundSegment
from flexinfer.ops.torch_memory import DeviceArena
from kernel_matrices import Matrix

torch.set_num_threads(1)  # more would mostly wait for each other with shapes so small


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of storages made while it is entered; `peak_bytes` is the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in before | self._seen:
                    self._count(storage)
        return result

    def _count(self, storage: Any) -> None:
        size, at = storage.nbytes(), storage.data_ptr()
        self._seen.add(at)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        weakref.finalize(storage, self._freed, at, size)

    def _freed(self, at: int, size: int) -> None:
        self._seen.discard(at)
        self.bytes -= size


class HeldStream:
    """A stream of requests that are all there."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self._addresses = addresses

    def take(self, request_index: int) -> int:
        return self._addresses[request_index]

    def release(self, request_index: int) -> None:
        pass


def device_matrix(w: Matrix, arena: DeviceArena, locked_rows: int) -> tuple[BoundMatrix, Any]:
    """A matrix in device memory: its first rows locked, the rest as one streamed segment."""
    kind = BLOCK_TYPES[w.type_id]
    first = Matrix(w.type_id, locked_rows, w.columns, w.data[:locked_rows])
    locked = first.interleaved(_kernels.Context(1)) if locked_rows else np.empty(0, np.uint8)
    rest = w.data[locked_rows:].reshape(-1)
    addresses = []
    for data in (locked, rest):
        region = arena.take(data.size)
        region.array(np.uint8, data.shape).copy_(torch.from_numpy(data))
        addresses.append(region.address)
    row_bytes = kind.row_bytes(w.columns)
    segments = (BoundSegment(0, 0, locked_rows, w.rows - locked_rows, True, True),)
    bound = BoundMatrix(
        "w", w.type_id, w.rows, w.columns, row_bytes, 16 * row_bytes, True, addresses[0],
        locked_rows, segments if locked_rows < w.rows else (),
    )  # fmt: skip
    return bound, HeldStream(addresses[1:])


def spec_of(heads: int, kv_heads: int, head_dim: int) -> ModelSpec:
    return ModelSpec(
        "llama", (Layer(None),), heads * head_dim, 64, heads, kv_heads, head_dim, 64, 256, 1e-5,
        "silu", head_dim**-0.5, False,
    )  # fmt: skip
