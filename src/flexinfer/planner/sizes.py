"""The sizes of everything in memory that is not a weight matrix: read by the planner and by the
allocator alike.
"""

from dataclasses import dataclass

from flexinfer import _kernels
from flexinfer.errors import OptionError
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.arena import round_up
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import ModelWeights

KV_TYPES = {"f16": BLOCK_TYPES[1], "f32": BLOCK_TYPES[0], "q8_0": BLOCK_TYPES[8]}
PAGE_TOKENS = 64  # positions in one page of the KV cache
ALIGNMENT = 64


def aligned(n: int) -> int:
    return round_up(n, ALIGNMENT)


def quantised_bytes(columns: int) -> int:
    """Of one token's int8 activations; columns that do not fill blocks have none, but a place."""
    return _kernels.activation_bytes(-(-columns // 32) * 32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Byte counts for a model; `kv_type` is one of KV_TYPES. Raises OptionError for another, and
    where its blocks do not fill a head.
    """

    spec: ModelSpec
    weights: ModelWeights
    kv_type: str
    cached_layers: frozenset[int] | None = None  # whose cache is in host memory; None: all

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise OptionError(
                f"unknown --kv-type {self.kv_type!r}", f"known: {', '.join(KV_TYPES)}"
            )
        block, head_dim = self.kv_block_type.block_values, self.spec.head_dim
        if head_dim % block:
            raise OptionError(
                f"--kv-type {self.kv_type} takes blocks of {block} values, which do not fill this "
                f"model's head_dim of {head_dim}",
                "leave --kv-type out, or give f32",
            )

    @property
    def kv_block_type(self) -> BlockType:
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
        spec, kind = self.spec, self.kv_block_type
        return _kernels.kv_page_bytes(spec.kv_heads, spec.head_dim, kind.ggml_id)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The kinds of layers by what they see, each with page tables of its own."""
        return tuple(dict.fromkeys(layer.window_tokens for layer in self.spec.layers))

    @property
    def kinds(self) -> tuple[int, ...]:
        """Of each layer, which of the windows is its own."""
        return tuple(self.windows.index(layer.window_tokens) for layer in self.spec.layers)

    def kv_pages(self, window_tokens: int | None, context_tokens: int, sweep_tokens: int) -> int:
        """Pages of one layer: the whole context, or what a sweep of a window's layer can touch."""
        pages = -(-context_tokens // PAGE_TOKENS)
        if window_tokens is None:
            return pages
        return min(pages, -(-(window_tokens + sweep_tokens) // PAGE_TOKENS) + 1)

    def kv_bytes(self, context_tokens: int, sweep_tokens: int) -> int:
        """The whole pages of all layers."""
        return self.kv_page_bytes() * sum(
            self.kv_pages(layer.window_tokens, context_tokens, sweep_tokens)
            for index, layer in enumerate(self.spec.layers)
            if self.cached(index)
        )

    def cached(self, layer: int) -> bool:
        return self.cached_layers is None or layer in self.cached_layers

    def vector_bytes(self) -> int:
        return sum(aligned(4 * v.columns) for v in self.weights.vectors.values())

    def logits_bytes(self) -> int:
        return aligned(4 * self.spec.vocab_size)

    def parts(self, context_tokens: int, sweep_tokens: int) -> dict[Category, int]:
        """Bytes by category, but for the weight matrices and what the process holds anyhow."""
        return {
            Category.VECTORS: self.vector_bytes(),
            Category.KV_CACHE: self.kv_bytes(context_tokens, sweep_tokens),
            Category.ACTIVATIONS: self.activation_bytes(sweep_tokens),
            Category.LOGITS: self.logits_bytes(),
        }
