"""The CPU kernels. Arrays are float32 unless said; rows are contiguous and may be strided.

Wrong shapes and sizes raise ValueError, wrong element types TypeError. Calls release the GIL; those
that share a Context take turns. Where a call takes a Program in its place, it is recorded instead:
checked, but not run. No result depends on the batch, the threads or the instruction set.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]

KV_PAGE_TOKENS: int

def available_isas() -> list[str]:
    """Instruction sets that this build has and this processor runs, the best last."""

class Context:
    """What a call runs in: `threads` threads (the caller is one), an instruction set, scratch."""

    def __init__(self, threads: int, isa: str | None = None) -> None:
        """None takes the best. ValueError for threads < 1 and for an ISA not available here."""
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory held; it grows on demand and is never given back."""

class Program:
    """Calls of sweeps of `tokens` tokens, in order. Addresses are recorded, not arrays: the caller
    vouches that what is recorded stays where it is.
    """

    def __init__(self, ctx: Context, tokens: int) -> None: ...
    def __len__(self) -> int: ...
    def attention(
        self,
        k: _Floats,
        v: _Floats,
        q: _Floats,
        out: _Floats,
        pages: int,
        page_stride_bytes: int,
        kind: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        type_id: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> None:
        """Record `kv_append` and `attention` of each span's tokens, by its table of that kind."""
    def run(self, first: int, last: int, spans: Spans, addresses: NDArray[np.int64]) -> None:
        """Run the recorded calls [first, last); request r of the stream lies at addresses[r]."""

class Spans:
    """The tokens of one sweep, by sequence."""

    def __init__(self) -> None: ...
    def add(self, first: int, tokens: int, start: int, tables: Sequence[NDArray[np.int32]]) -> None:
        """Rows first .. of the activations stand at positions start .., in the pages that these
        tables tell, one for each kind of layers.
        """

_Target = Context | Program

def rms_norm(ctx: _Target, x: _Floats, weight: _Floats, eps: float, out: _Floats) -> None:
    """out[n, d] = x / sqrt(mean(x^2) + eps) * weight[d], row by row; out may be x."""

def rms_norm_add(ctx: _Target, x: _Floats, weight: _Floats, eps: float, out: _Floats) -> None:
    """out[n, d] += x / sqrt(mean(x^2) + eps) * weight[d], row by row."""

def rope_angles(
    inv_freq: NDArray[np.float64], positions: NDArray[np.int32], magnitude: float, out: _Floats
) -> None:
    """out[i, :pairs] = cos(inv_freq * positions[i]) * magnitude, out[i, pairs:] the sines.

    Computed in float64, then rounded.
    """

def rope(
    ctx: _Target, x: _Floats, heads: int, head_dim: int, angles: _Floats, adjacent: bool
) -> None:
    """Turn the first 2 * pairs elements of every head of x[n, heads * head_dim] in place.

    `angles` is [n, 2 * pairs]. Pairs are (i, i + pairs), or (2i, 2i + 1) where `adjacent`.
    """

def scale(ctx: _Target, x: _Floats, factor: float) -> None:
    """x[n, d] *= factor, in place."""

def softcap(ctx: _Target, x: _Floats, cap: float) -> None:
    """x[n, d] = cap * tanh(x / cap), in place."""

def exp(ctx: Context, x: _Floats) -> None:
    """x[n, d] = exp(x) in place: the exponential that attention uses."""

def kv_page_bytes(kv_heads: int, head_dim: int, type_id: int) -> int:
    """Bytes of one layer's part of a page of KV_PAGE_TOKENS positions, keys and values.

    type_id is ggml's of F32, F16 or Q8_0, which rounds blocks of 32 values of a head.
    """

def kv_append(
    ctx: Context,
    k: _Floats,
    v: _Floats,
    pages: int,
    page_stride_bytes: int,
    table: NDArray[np.int32],
    start: int,
    kv_heads: int,
    head_dim: int,
    type_id: int,
) -> None:
    """Write k and v[n, kv_heads * head_dim] to the positions start .., rounded to the cache's type.

    Q8_0: scale = float16(absmax / 127), q = x / scale rounded half to even, at most 127. A block
    that has an infinity or NaN, or 127 times float16's largest, makes every output that it reaches
    NaN; below 2^-25 the scale is 0.

    `pages` is the address of the layer's part of page 0, table[position // 64] the page of a
    position. The caller vouches for the memory of every page in the table.
    """

def attention(
    ctx: Context,
    q: _Floats,
    out: _Floats,
    pages: int,
    page_stride_bytes: int,
    table: NDArray[np.int32],
    start: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    type_id: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """Attention of q[n, heads * head_dim] at the positions start .., whose keys are in the cache.

    A token at position p sees the keys max(0, p - window + 1) .. p (window 0: all up to p). Scores
    are q.k * scale, then softcap * tanh(score / softcap) where softcap is not 0. head_dim is even
    and at most 512.
    """

_Bytes = NDArray[np.uint8]

def supported_types() -> list[int]:
    """The ggml ids of the block types that can be multiplied by."""

def activation_bytes(columns: int) -> int:
    """Bytes of one token's quantised activations, a multiple of 64; columns is one of 32."""

def group_bytes(type_id: int, columns: int) -> int:
    """Bytes of a group of 16 rows, the same as in the file and interleaved."""

def quantize(ctx: _Target, x: _Floats, out: _Bytes) -> None:
    """x[n, columns] into out[n, activation_bytes(columns)], int8 with a scale per 32 values.

    scale = absmax / 127, q = x * (127 / absmax) rounded half to even. A block below 2^-100 in
    magnitude becomes zero; one with an infinity or NaN makes every output that it reaches NaN.
    """

def interleave(
    ctx: Context, type_id: int, source: int, destination: int, rows: int, columns: int
) -> None:
    """Rows as in the file, at address `source`, to interleaved groups at `destination`.

    The last group is padded with zero rows: destination takes ceil(rows / 16) groups.
    """

def linear(
    ctx: _Target,
    type_id: int,
    interleaved: bool,
    weights: int,
    rows: int,
    columns: int,
    x: _Floats,
    xq: _Bytes | None,
    out: _Floats,
    row0: int,
    epilogue: int,
    bias: _Floats | None,
) -> None:
    """y = x . W^T + bias of `rows` weight rows at address `weights`, into out[:, row0:row0 + rows].

    x is [n, columns] and xq its quantised form, which only F32 weights do without; out is
    [n, >= row0 + rows], bias [>= row0 + rows], read from row0. Epilogues: 0 out = y, 1 out += y,
    2 out = silu(out) * y, 3 out = gelu(out) * y in the tanh form. The bits do not depend on n,
    layout, or cuts at multiples of 16 rows.
    """

def linear_streamed(
    program: Program,
    type_id: int,
    request: int,
    offset_bytes: int,
    rows: int,
    columns: int,
    x: _Floats,
    xq: _Bytes | None,
    out: _Floats,
    row0: int,
    epilogue: int,
    bias: _Floats | None,
) -> None:
    """Record `linear` of rows as in the file, `offset_bytes` behind a request's address."""

def dequantize(type_id: int, source: int, rows: int, columns: int, out: _Floats) -> None:
    """Rows as in the file, at address `source`, to float32 out[rows, >= columns]."""

def read_bandwidth(ctx: Context, address: int, size_bytes: int, repeats: int) -> float:
    """Bytes per second at which the context's threads only read this memory: the bound."""

def port_rate(ctx: Context, values: str) -> float:
    """Operations per second (two per multiply-add) of the context's threads doing nothing but
    multiply, on operands at hand: what the processor's ports give. ValueError for values other
    than "int8", "float32" and "bfloat16", which are float32's where a set has none of its own.
    """
