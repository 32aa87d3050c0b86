"""What a model may ask of a processor. Arrays are the processor's own; every call is by plain
buffers and numbers.
"""

from collections.abc import Iterator, Sequence
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
    after it.
    """

    request: int
    start_bytes: int
    row: int
    rows: int
    first: bool
    last: bool


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


class Ops(Protocol):
    """The operations of the dense family. Shapes: x and out [tokens, columns], float32.

    Whatever reads weights raises ReadError; after it, or Ctrl-C, comes `abandon_sweep`.
    """

    def embed(self, tokens: Sequence[int], factor: float, out: Array) -> None:
        """The tokens' rows of the embedding, times `factor`."""
        ...

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

    def slabs(self, matrix: BoundMatrix, x: Input, out: Array) -> Iterator[tuple[int, Array]]:
        """The product in row slabs as wide as `out`: yields (first row, values [tokens, rows of
        the slab]), each valid until the next.
        """
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

    def rope_angles(
        self, frequencies: Array, positions: Array, magnitude: float, out: Array
    ) -> None:
        """Cosines and sines for `rope`, times `magnitude`, [tokens, 2 * pairs], of float64
        frequencies [pairs] and int32 positions [tokens].
        """
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

    def abandon_sweep(self) -> None:
        """Forget the sweep's place: the next one begins at the first request."""
        ...
