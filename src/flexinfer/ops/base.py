"""What a model may ask of a processor. Arrays are the processor's own; every call is by plain
buffers and numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

Array = Any  # numpy on the CPU, a tensor elsewhere


class Epilogue(IntEnum):
    """What happens to a product y (after its bias): the numbers are the kernels'."""

    STORE = 0
    ADD = 1  # out += y
    SILU_MUL = 2  # out = silu(out) * y
    GELU_MUL = 3  # out = gelu(out) * y, tanh form


@dataclass(frozen=True, slots=True)
class BoundSegment:
    """A streamed row range; `first`/`last` tell whether its request is taken before, released
    after it. `interleaved`: in the form of locked rows, as host memory gives them to a device.
    """

    request: int
    start_bytes: int
    row: int
    rows: int
    first: bool
    last: bool
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class BoundMatrix:
    """A weight matrix where it really is: locked rows at an address, the rest in the stream."""

    name: str
    type_id: int
    rows: int
    columns: int
    row_bytes: int
    group_bytes: int  # of 16 interleaved rows
    needs_quantised: bool
    locked_address: int
    locked_rows: int
    segments: tuple[BoundSegment, ...]
    interleaved: bool = True  # the locked rows, in groups of 16; else as in the file


@dataclass(frozen=True, slots=True)
class Input:
    """The right-hand side of products: float32 [tokens, columns] and, where a matrix needs it,
    its int8 form.
    """

    x: Array
    quantised: Array | None


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence within a sweep: rows `first`.. of the buffers,
    positions `start`.. .
    """

    first: int
    count: int
    start: int
    tables: tuple[Array, ...]  # for each kind of layers, int32 page numbers, one per 64 positions


class DeviceOps(Protocol):
    """What moves between the host and a processor with memory of its own. Host arrays are numpy."""

    def receive(self, values: Array, out: Array) -> None:
        """From the host."""
        ...

    def give(self, x: Array, out: Array) -> None:
        """To the host; there when it returns."""
        ...

    def cache_page(self, layer: int, address: int, page: int, first: int, last: int) -> None:
        """Positions first .. last - 1 of a layer's cache from a page of the host's, number `page`
        of its sequence.
        """
        ...

    def reached(self) -> Any:
        """What was asked for so far, for `cached` to wait for."""
        ...

    def cached(self, layer: int, first: int, last: int, reached: Any) -> tuple[Array, Array]:
        """Keys and values of positions for the host, as they were at `reached`: float32
        [positions, kv_heads * head_dim]. From any thread.
        """
        ...


class LayerOps(Protocol):
    """What computes a layer and the head. Shapes: x and out [tokens, columns], float32."""

    def quantise(self, x: Array, space: Array, matrices: Sequence[BoundMatrix]) -> Input:
        """Make `x` ready for `matrices`; `space` uint8 [tokens, bytes] takes the int8 form if
        one needs it.
        """
        ...

    def linear(
        self,
        matrix: BoundMatrix,
        x: Input,
        out: Array,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Array | None = None,
    ) -> None:
        """x times the matrix transposed, plus `bias` [rows]; out [tokens, rows]."""
        ...

    def pass_over(self, matrix: BoundMatrix) -> None:
        """Let the matrix's streamed segments go by unused."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x / rms(x) * weight; `out` may be x."""
        ...

    def rms_norm_add(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out += x / rms(x) * weight."""
        ...

    def rope(self, x: Array, heads: int, head_dim: int, angles: Array, adjacent: bool) -> None:
        """Turn the pairs of each head in place: neighbours where `adjacent`, else halves."""
        ...

    def softcap(self, x: Array, cap: float) -> None:
        """x = cap * tanh(x / cap), in place."""
        ...

    def scale(self, x: Array, factor: float) -> None:
        """x *= factor, in place."""
        ...

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
        """Append k and v to the layer's cache, then attend: rows of each span see its sequence
        up to themselves.
        """
        ...


class Ops(LayerOps, Protocol):
    """All that a sweep asks for.

    Whatever reads weights raises ReadError; after it, or Ctrl-C, comes `abandon_sweep`.
    """

    def embed(self, tokens: Sequence[int], factor: float, out: Array) -> None:
        """The tokens' rows of the embedding, times `factor`."""
        ...

    def slabs(self, matrix: BoundMatrix, x: Input, out: Array) -> Iterator[tuple[int, Array]]:
        """The product in row slabs as wide as `out`: yields (first row, values [tokens, rows of
        the slab]), each valid until the next.
        """
        ...

    def rope_angles(
        self, frequencies: Array, positions: Array, magnitude: float, out: Array
    ) -> None:
        """Cosines and sines for `rope`, times `magnitude`, [tokens, 2 * pairs], of float64
        frequencies [pairs] and int32 positions [tokens].
        """
        ...

    def abandon_sweep(self) -> None:
        """Forget the sweep's place: the next one begins at the first request."""
        ...


class RecordingOps(Ops, Protocol):
    """Those whose calls can be recorded."""

    def program(self, tokens: int) -> "Program":
        """Somewhere to record calls for sweeps of `tokens` tokens."""
        ...


class Program(LayerOps, Protocol):
    """Records instead of running: calls fall into parts, which are replayed sweep after sweep.

    Arrays and matrices must stay where they are meanwhile. Spans come with each replay, the ones
    that `attention` is given are not looked at.
    """

    def close_part(self) -> None:
        """All calls since the last part make the next one; parts count from 0."""
        ...

    def replay(
        self,
        parts: Iterable[int],
        spans: Sequence[Span],
        on_part: Callable[[int], None] | None = None,
    ) -> None:
        """Run these parts, each after `on_part` of it; errors are those of `Ops`."""
        ...
