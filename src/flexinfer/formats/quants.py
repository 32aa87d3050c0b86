"""The one table of block types: ids, block shapes and sizes as in the GGUF specification.

Q8_1 and Q8_K are left out: ggml makes them of activations, no file holds them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor's storage type: `block_values` consecutive values take `block_bytes` bytes."""

    name: str
    ggml_id: int
    block_values: int
    block_bytes: int
    has_kernel: bool = False  # csrc can multiply by it

    def row_bytes(self, columns: int) -> int:
        return columns // self.block_values * self.block_bytes


BLOCK_TYPES: dict[int, BlockType] = {
    t.ggml_id: t
    for t in (
        BlockType("F32", 0, 1, 4, True),
        BlockType("F16", 1, 1, 2, True),
        BlockType("Q4_0", 2, 32, 18, True),
        BlockType("Q4_1", 3, 32, 20, True),
        BlockType("Q5_0", 6, 32, 22, True),
        BlockType("Q5_1", 7, 32, 24, True),
        BlockType("Q8_0", 8, 32, 34, True),
        BlockType("Q2_K", 10, 256, 84, True),
        BlockType("Q3_K", 11, 256, 110, True),
        BlockType("Q4_K", 12, 256, 144, True),
        BlockType("Q5_K", 13, 256, 176, True),
        BlockType("Q6_K", 14, 256, 210, True),
        BlockType("IQ2_XXS", 16, 256, 66),
        BlockType("IQ2_XS", 17, 256, 74),
        BlockType("IQ3_XXS", 18, 256, 98),
        BlockType("IQ1_S", 19, 256, 50),
        BlockType("IQ4_NL", 20, 32, 18, True),
        BlockType("IQ3_S", 21, 256, 110),
        BlockType("IQ2_S", 22, 256, 82),
        BlockType("IQ4_XS", 23, 256, 136, True),
        BlockType("I8", 24, 1, 1),
        BlockType("I16", 25, 1, 2),
        BlockType("I32", 26, 1, 4),
        BlockType("I64", 27, 1, 8),
        BlockType("F64", 28, 1, 8),
        BlockType("IQ1_M", 29, 256, 56),
        BlockType("BF16", 30, 1, 2, True),
        BlockType("TQ1_0", 34, 256, 54),
        BlockType("TQ2_0", 35, 256, 66),
        BlockType("MXFP4", 39, 32, 17, True),
        BlockType("NVFP4", 40, 64, 36),
        BlockType("Q1_0", 41, 128, 18),
    )
}

# Ids that were taken back: a tensor of one can be named, its size no longer be told.
REMOVED_TYPES = {
    **{4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"},
    **{36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"},
}
