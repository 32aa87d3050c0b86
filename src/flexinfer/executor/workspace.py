"""The activations' memory: taken once from the arena, cut anew for each sweep's number of
tokens.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from flexinfer.memory.arena import Region
from flexinfer.models.decoder import Buffers
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import Array
from flexinfer.planner.sizes import Sizes, aligned, quantised_bytes


@dataclass(frozen=True, slots=True)
class Workspace:
    """Flat regions for `tokens` tokens; `buffers(n)` are views for n ≤ tokens of them."""

    spec: ModelSpec
    tokens: int
    hidden: Array
    narrow: Array
    wide: Array
    quantised: Array
    angles: Array  # [2, tokens * head_dim]: of two kinds of layers
    logits: Array  # [1, vocabulary]

    @classmethod
    def carve(cls, sizes: Sizes, tokens: int, activations: Region, logits: Region) -> Self:
        """Cut the regions that the plan charged, `sizes.activation_bytes(tokens)` and
        `logits_bytes()`.
        """
        spec, used = sizes.spec, 0

        def part(size_bytes: int) -> Region:
            nonlocal used
            used += aligned(size_bytes)
            return activations.part(used - aligned(size_bytes), size_bytes)

        def floats(columns: int) -> Array:
            return part(4 * tokens * columns).array(np.float32, (tokens * columns,))

        quantised = tokens * sizes.quantised_bytes
        return cls(
            spec,
            tokens,
            floats(spec.dim),
            floats(max(spec.dim, sizes.attention_columns)),
            floats(sizes.wide_columns),
            part(quantised).array(np.uint8, (quantised,)),
            floats(2 * spec.head_dim).reshape(2, -1),
            logits.array(np.float32, (1, spec.vocab_size)),
        )

    def buffers(self, n: int) -> Buffers:
        """Views for a sweep of `n` tokens."""
        spec = self.spec
        heads, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        return Buffers(
            hidden=rows(self.hidden, n, spec.dim),
            x=rows(self.narrow, n, spec.dim),
            heads=rows(self.narrow, n, heads),
            q=rows(self.wide, n, heads),
            k=rows(self.wide[n * heads :], n, kv),
            v=rows(self.wide[n * (heads + kv) :], n, kv),
            inner=rows(self.wide, n, spec.ffn_dim),
            wide_out=rows(self.wide, n, spec.dim),
            quantised_dim=self.quantised_rows(n, spec.dim),
            quantised_heads=self.quantised_rows(n, heads),
            quantised_inner=self.quantised_rows(n, spec.ffn_dim),
        )

    def quantised_rows(self, n: int, columns: int) -> Array:
        return rows(self.quantised, n, quantised_bytes(columns))


def rows(flat: Array, n: int, columns: int) -> Array:
    """The first n * columns elements as a matrix."""
    return flat[: n * columns].reshape(n, columns)
