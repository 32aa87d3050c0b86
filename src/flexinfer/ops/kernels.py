"""What running and recording share: the calls that go to the kernels as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexinfer import _kernels
from flexinfer.ops.base import BoundMatrix, Input

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache's memory: pages of 64 positions, those of a layer side by side."""

    layers: tuple[int, ...]  # address of each layer's first page
    kinds: tuple[int, ...]  # which of a span's tables each layer goes by
    page_bytes: int
    type_id: int  # ggml's


class KernelCalls:
    """The small operations of `LayerOps`, issued to a context, which runs them, or to a program,
    which records them.
    """

    def __init__(self, target: _kernels.Context | _kernels.Program) -> None:
        self._target = target

    def quantise(self, x: Array, space: Array, matrices: Sequence[BoundMatrix]) -> Input:
        if not any(matrix.needs_quantised for matrix in matrices):
            return Input(x, None)
        _kernels.quantize(self._target, x, space)
        return Input(x, space)

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        _kernels.rms_norm(self._target, x, weight, eps, out)

    def rms_norm_add(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        _kernels.rms_norm_add(self._target, x, weight, eps, out)

    def rope(self, x: Array, heads: int, head_dim: int, angles: Array, adjacent: bool) -> None:
        _kernels.rope(self._target, x, heads, head_dim, angles, adjacent)

    def scale(self, x: Array, factor: float) -> None:
        _kernels.scale(self._target, x, factor)

    def softcap(self, x: Array, cap: float) -> None:
        _kernels.softcap(self._target, x, cap)
