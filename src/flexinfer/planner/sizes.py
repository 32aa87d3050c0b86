"""The sizes of everything in memory that is not a weight matrix: read by the planner and by the
allocator alike.
"""

from dataclasses import dataclass

from flexinfer import _kernels
from flexinfer.errors import OptionError
from flexinfer.memory.arena import round_up
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import ModelWeights

KV_TYPES = {"f16": 2, "f32": 4}
PAGE_TOKENS = 64  # positions in one page of the KV cache
ALIGNMENT = 64


def aligned(n: int) -> int:
    return round_up(n, ALIGNMENT)


def quantised_bytes(columns: int) -> int:
    """Of one token's int8 activations; columns that do not fill blocks have none, but a place."""
    return _kernels.activation_bytes(-(-columns // 32) * 32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Byte counts for a model; `kv_type` is f16 or f32. Raises OptionError for another."""

    spec: ModelSpec
    weights: ModelWeights
    kv_type: str

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise OptionError(
                f"unknown --kv-type {self.kv_type!r}", f"known: {', '.join(KV_TYPES)}"
            )

    @property
    def kv_value_bytes(self) -> int:
        return KV_TYPES[self.kv_type]

    @property
    def attention_columns(self) -> int:
        return self.spec.heads * self.spec.head_dim

    @property
    def wide_columns(self) -> int:
        """Floats of the buffer that holds q, k, v side by side, then the FFN's inner
        activations.
        """
        spec = self.spec
        qkv = self.attention_columns + 2 * spec.kv_heads * spec.head_dim
        return max(qkv, spec.ffn_dim, spec.dim)

    @property
    def quantised_bytes(self) -> int:
        widest = max(self.spec.dim, self.attention_columns, self.spec.ffn_dim)
        return quantised_bytes(widest)

    def activation_bytes(self, sweep_tokens: int) -> int:
        """Hidden state, one more row of its width (or of all heads), the wide buffer, and the
        quantised input.
        """
        narrow = self.spec.dim + max(self.spec.dim, self.attention_columns)
        rope = 2 * self.spec.head_dim  # angles of two kinds of layers
        floats = 4 * (narrow + self.wide_columns + rope)
        return sweep_tokens * (floats + self.quantised_bytes) + 8 * ALIGNMENT * bool(sweep_tokens)

    def kv_page_bytes(self) -> int:
        """One layer's keys and values of PAGE_TOKENS positions."""
        return _kernels.kv_page_bytes(self.spec.kv_heads, self.spec.head_dim, self.kv_value_bytes)

    def kv_bytes(self, context_tokens: int) -> int:
        """The whole pages, in every layer, of a context."""
        return len(self.spec.layers) * -(-context_tokens // PAGE_TOKENS) * self.kv_page_bytes()

    def vector_bytes(self) -> int:
        return sum(aligned(4 * v.columns) for v in self.weights.vectors.values())

    def logits_bytes(self) -> int:
        return aligned(4 * self.spec.vocab_size)

    def parts(self, context_tokens: int, sweep_tokens: int) -> dict[Category, int]:
        """Bytes by category, but for the weight matrices and what the process holds anyhow."""
        return {
            Category.VECTORS: self.vector_bytes(),
            Category.KV_CACHE: self.kv_bytes(context_tokens),
            Category.ACTIVATIONS: self.activation_bytes(sweep_tokens),
            Category.LOGITS: self.logits_bytes(),
        }
