"""Products by the Triton kernels: which block types have one, the tiles, the launch."""

from dataclasses import dataclass
from typing import Any

import torch

from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.ops import torch_triton_blocks as blocks
from flexinfer.ops.base import Epilogue
from flexinfer.ops.torch_triton_kernels import PLANE_LANES, many, one
from flexinfer.planner.placement import GROUP_ROWS

Tensor = Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A block type as the kernels take it (`torch_triton_blocks`). `unpack` gives the words of one
    half and their scales, and minima where it has some.
    """

    unpack: Any
    words: int  # in a block
    span: int
    offset: int = 0
    halves: int = 2
    minima: bool = False


KINDS = {
    "Q4_0": Kind(blocks.q4_0, 4, 16, offset=8),
    "Q4_1": Kind(blocks.q4_1, 4, 16, minima=True),
    "Q5_0": Kind(blocks.q5_0, 4, 16, offset=16),
    "Q5_1": Kind(blocks.q5_1, 4, 16, minima=True),
    "Q8_0": Kind(blocks.q8_0, 8, 32, offset=128, halves=1),
    "Q4_K": Kind(blocks.q4_k, 32, 32, minima=True),
    "Q5_K": Kind(blocks.q5_k, 32, 32, minima=True),
    "Q6_K": Kind(blocks.q6_k, 32, 64, offset=32),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel and its tiles: fixed, for their sizes are the order of additions."""

    kernel: Any
    tokens: int  # of a tile, as are the others
    lanes: int
    file_rows: int
    group_rows: int  # of an interleaved matrix
    warps: int

    def rows(self, interleaved: bool) -> int:
        return self.group_rows if interleaved else self.file_rows

    def constants(self, type_id: int, interleaved: bool) -> dict[str, Any]:
        block, kind = BLOCK_TYPES[type_id], KINDS[BLOCK_TYPES[type_id].name]
        return {
            "UNPACK": kind.unpack,
            "HALVES": kind.halves,
            "WORDS": kind.words,
            "BLOCK_BYTES": block.block_bytes,
            "OFFSET": kind.offset,
            "MINIMA": kind.minima,
            "INTERLEAVED": interleaved,
            "ROWS": self.rows(interleaved),
            "LANES": self.lanes,
            "TOKENS": self.tokens,
        }

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": 2, "enable_fp_fusion": False}


# 16 interleaved rows lie side by side: 64 bytes. A file's row does, so a warp takes one.
ONE = Variant(one, tokens=1, lanes=64, file_rows=4, group_rows=16, warps=4)
SOME = Variant(many, tokens=16, lanes=16, file_rows=64, group_rows=64, warps=4)
MANY = Variant(many, tokens=128, lanes=16, file_rows=64, group_rows=64, warps=8)


class FusedProducts:
    """The kernels, on tensors; `matmul` is the type that more than one token is multiplied in."""

    def __init__(self, matmul: Any) -> None:
        self._matmul = matmul

    def knows(self, type_id: int) -> bool:
        """Whether there is a kernel for the block type."""
        return BLOCK_TYPES[type_id].name in KINDS

    def multiply(
        self,
        type_id: int,
        data: Tensor,
        first: int,
        x: Tensor,
        out: Tensor,
        *,
        interleaved: bool,
        epilogue: Epilogue = Epilogue.STORE,
        bias: Tensor | None = None,
    ) -> None:
        """x times a piece of a matrix, transposed: float32 x [tokens, columns], out [tokens, rows].

        `data` holds the piece's rows, whole groups where it is interleaved; `first` is the number
        of its first row in the matrix, in groups a multiple of 16.
        """
        block, kind = BLOCK_TYPES[type_id], KINDS[BLOCK_TYPES[type_id].name]
        (tokens, columns), rows = x.shape, out.shape[1]
        unit = 16 if interleaved else 2 if block.block_bytes % 4 else 4
        assert data.data_ptr() % unit == 0 and not (interleaved and first % GROUP_ROWS)
        assert out.stride(1) == 1 and (bias is None or bias.stride(0) == 1)
        variant = ONE if tokens == 1 else SOME if tokens <= SOME.tokens else MANY
        tile_rows = variant.rows(interleaved)
        tiles = -(-(first + rows) // tile_rows) - first // tile_rows
        grid = (tiles * -(-tokens // variant.tokens),)
        variant.kernel[grid](
            data,
            _by_lanes(x, kind, torch.float32 if variant is ONE else self._matmul),
            out,
            out if bias is None else bias,
            first,
            rows,
            columns // (4 * kind.halves),
            block.row_bytes(columns),
            int(bias is not None),
            int(epilogue),
            out.stride(0),
            tokens,
            **variant.constants(type_id, interleaved),
            **variant.options,
        )


def _by_lanes(x: Tensor, kind: Kind, dtype: Any) -> Tensor:
    """Inputs as the kernels read them: [tokens, halves, 4, lanes], lanes padded with zeros."""
    tokens, columns = x.shape
    lanes, words = columns // (4 * kind.halves), kind.span // 4
    padded = -(-lanes // PLANE_LANES.value) * PLANE_LANES.value
    out = torch.empty((tokens, kind.halves, 4, padded), dtype=dtype, device=x.device)
    out[..., lanes:].zero_()
    ordered = x.view(tokens, -1, kind.halves, words, 4).permute(0, 2, 4, 1, 3)
    out[..., :lanes].unflatten(3, (-1, words)).copy_(ordered)
    return out
