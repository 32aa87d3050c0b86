"""A sweep's calls recorded once for a number of tokens, and replayed by the kernels themselves.

Of small models a sweep is hundreds of calls of some microseconds; to make them one by one from
Python takes as long again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexinfer import _kernels
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Epilogue, Input, Span
from flexinfer.ops.kernels import Cache, KernelCalls
from flexinfer.streaming.prefetcher import Stream

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Calls `first` .. `last` - 1 between what the stream does before and after them."""

    take: int | None  # a request
    first: int
    last: int
    release: int | None


class CpuProgram(KernelCalls):
    """Records what it is asked for, in parts, and replays parts; arrays must stay where they are.

    A part is one native call where nothing of it streams, else one for each request.
    """

    def __init__(
        self,
        context: _kernels.Context,
        spec: ModelSpec,
        cache: Cache,
        stream: Stream | None,
        tokens: int,
    ) -> None:
        program = _kernels.Program(context, tokens)
        super().__init__(program)
        self._program = program
        self._spec = spec
        self._cache = cache
        self._stream = stream
        self._parts: list[tuple[Stretch, ...]] = []
        self._open: list[Stretch] = []  # of the part being recorded
        self._take: int | None = None  # before the calls recorded from `_first` on
        self._first = 0
        self._addresses = np.zeros(0, np.int64)  # of requests in use

    def linear(
        self,
        matrix: BoundMatrix,
        x: Input,
        out: Array,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Array | None = None,
    ) -> None:
        common = (matrix.columns, x.x, x.quantised, out)
        if matrix.locked_rows:
            place = (matrix.type_id, True, matrix.locked_address, matrix.locked_rows)
            _kernels.linear(self._program, *place, *common, 0, epilogue, bias)
        for segment in matrix.segments:
            if segment.first:
                self._cut(take=segment.request)
            _kernels.linear_streamed(
                self._program,
                matrix.type_id,
                segment.request,
                segment.start_bytes,
                segment.rows,
                *common,
                segment.row,
                epilogue,
                bias,
            )
            if segment.last:
                self._cut(release=segment.request)

    def pass_over(self, matrix: BoundMatrix) -> None:
        for segment in matrix.segments:
            if segment.first:
                self._cut(take=segment.request)
            if segment.last:
                self._cut(release=segment.request)

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
        self._program.attention(
            k,
            v,
            q,
            out,
            cache.layers[layer],
            cache.page_bytes,
            cache.kinds[layer],
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            cache.type_id,
            spec.attention_scale,
            window_tokens or 0,
            spec.attention_softcap or 0.0,
        )

    def close_part(self) -> None:
        self._cut()
        self._parts.append(tuple(self._open))
        self._open.clear()

    def replay(
        self,
        parts: Iterable[int],
        spans: Sequence[Span],
        on_part: Callable[[int], None] | None = None,
    ) -> None:
        native = _kernels.Spans()
        for span in spans:
            native.add(span.first, span.count, span.start, span.tables)
        program, stream, addresses = self._program, self._stream, self._addresses
        for part in parts:
            if on_part:
                on_part(part)
            for stretch in self._parts[part]:
                if stretch.take is not None:
                    assert stream is not None
                    addresses[stretch.take] = stream.take(stretch.take)
                program.run(stretch.first, stretch.last, native, addresses)
                if stretch.release is not None:
                    assert stream is not None
                    stream.release(stretch.release)

    def _cut(self, take: int | None = None, release: int | None = None) -> None:
        """End the calls so far with a release; the next ones begin with a take."""
        last = len(self._program)
        if self._take is not None or release is not None or last > self._first:
            self._open.append(Stretch(self._take, self._first, last, release))
        self._take, self._first = take, last
        if take is not None and take >= len(self._addresses):
            self._addresses = np.zeros(take + 1, np.int64)
