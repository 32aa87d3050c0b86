"""Ops on the CPU: float32 numpy arrays in preallocated memory, everything heavy in the kernels.

No numpy product or sum is on the path: its results change with the batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flexinfer import _kernels
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Epilogue, Input, Span
from flexinfer.ops.embedding import EmbeddingRows
from flexinfer.ops.kernels import Cache, KernelCalls
from flexinfer.ops.program import CpuProgram
from flexinfer.planner.placement import GROUP_ROWS
from flexinfer.planner.sizes import PAGE_TOKENS
from flexinfer.streaming.prefetcher import Stream

Array = np.ndarray[Any, Any]


class CpuOps(KernelCalls):
    """Ops on `context`'s threads; streamed segments come from `stream` in the order of the
    sweep.
    """

    def __init__(
        self,
        context: _kernels.Context,
        spec: ModelSpec,
        embedding: EmbeddingRows,
        cache: Cache,
        stream: Stream | None,
    ) -> None:
        super().__init__(context)
        self._context = context
        self._spec = spec
        self._embedding = embedding
        self._cache = cache
        self._stream = stream
        self._held: dict[int, int] = {}  # request → address, while its segments are in use

    def embed(self, tokens: Sequence[int], factor: float, out: Array) -> None:
        self._embedding.gather(tokens, out)
        if factor != 1.0:
            self.scale(out, factor)

    def linear(
        self,
        matrix: BoundMatrix,
        x: Input,
        out: Array,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Array | None = None,
    ) -> None:
        for interleaved, address, row, rows in self._pieces(matrix):
            _kernels.linear(
                self._context,
                matrix.type_id,
                interleaved,
                address,
                rows,
                matrix.columns,
                x.x,
                x.quantised,
                out,
                row,
                epilogue,
                bias,
            )

    def slabs(self, matrix: BoundMatrix, x: Input, out: Array) -> Iterator[tuple[int, Array]]:
        width = out.shape[1] // GROUP_ROWS * GROUP_ROWS
        for interleaved, address, row, rows in self._pieces(matrix):
            step = matrix.group_bytes // GROUP_ROWS if interleaved else matrix.row_bytes
            for first in range(0, rows, width):
                count = min(width, rows - first)
                _kernels.linear(
                    self._context,
                    matrix.type_id,
                    interleaved,
                    address + first * step,
                    count,
                    matrix.columns,
                    x.x,
                    x.quantised,
                    out,
                    0,
                    Epilogue.STORE,
                    None,
                )
                yield row + first, out[:, :count]

    def pass_over(self, matrix: BoundMatrix) -> None:
        for _ in self._pieces(matrix):
            pass

    def _pieces(self, matrix: BoundMatrix) -> Iterator[tuple[bool, int, int, int]]:
        """(interleaved, address, first row, rows) of the matrix; a streamed piece is valid
        until the next.
        """
        if matrix.locked_rows:
            yield True, matrix.locked_address, 0, matrix.locked_rows
        for segment in matrix.segments:
            assert self._stream is not None
            if segment.first:
                self._held[segment.request] = self._stream.take(segment.request)
            yield (
                False,
                self._held[segment.request] + segment.start_bytes,
                segment.row,
                segment.rows,
            )
            if segment.last:
                del self._held[segment.request]
                self._stream.release(segment.request)

    def program(self, tokens: int) -> CpuProgram:
        return CpuProgram(self._context, self._spec, self._cache, self._stream, tokens)

    def abandon_sweep(self) -> None:
        self._held.clear()
        if self._stream is not None:
            self._stream.rewind()

    def rope_angles(
        self, frequencies: Array, positions: Array, magnitude: float, out: Array
    ) -> None:
        _kernels.rope_angles(frequencies, positions, magnitude, out)

    def append(self, layer: int, span: Span, position: int, k: Array, v: Array) -> None:
        """Keys and values of the positions `position` .. join the layer's cache."""
        spec, cache = self._spec, self._cache
        _kernels.kv_append(
            self._context,
            k,
            v,
            cache.layers[layer],
            cache.page_bytes,
            span.tables[cache.kinds[layer]],
            position,
            spec.kv_heads,
            spec.head_dim,
            cache.type_id,
        )

    def pages(self, layer: int, span: Span, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(number in the sequence, address) of the layer's pages that hold positions first .. last
        - 1.
        """
        cache = self._cache
        table = span.tables[cache.kinds[layer]]
        for page in range(first // PAGE_TOKENS, -(-last // PAGE_TOKENS)):
            yield page, cache.layers[layer] + int(table[page]) * cache.page_bytes

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        layer: int,
        spans: Sequence[Span],
        window_tokens: int | None,
    ) -> None:
        spec, cache = self._spec, self._cache
        pages, kind = cache.layers[layer], cache.kinds[layer]
        for span in spans:
            rows = slice(span.first, span.first + span.count)
            self.append(layer, span, span.start, k[rows], v[rows])
            _kernels.attention(
                self._context,
                q[rows],
                out[rows],
                pages,
                cache.page_bytes,
                span.tables[kind],
                span.start,
                spec.heads,
                spec.kv_heads,
                spec.head_dim,
                cache.type_id,
                spec.attention_scale,
                window_tokens or 0,
                spec.attention_softcap or 0.0,
            )
