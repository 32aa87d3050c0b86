"""A model's hyper-parameters, normalised: one description whatever file they came from."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from flexinfer.formats.quants import BlockType


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding. `factors` (one a pair) divide frequencies, `scale` multiplies positions,
    `magnitude` the cosines and sines.
    """

    base: float
    dim: int  # leading dimensions of a head that turn
    # (0,1),(2,3).. as llama's GGUF rows, or (0,d/2),(1,d/2+1)..
    pairing: Literal["adjacent", "half"]
    factors: tuple[float, ...] | None = None
    scale: float = 1.0
    magnitude: float = 1.0
    long_factors: tuple[float, ...] | None = None  # instead of `factors`, where the context
    original_tokens: int = 0  # is longer than this


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope | None  # None: positions are not told
    window_tokens: int | None = None  # sliding window; None sees everything


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The dense decoder family, steered by flags."""

    architecture: str
    layers: tuple[Layer, ...]
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int  # rows of the embedding
    context_tokens: int  # as trained
    norm_eps: float
    activation: Literal["silu", "gelu"]  # gelu: the tanh form
    attention_scale: float  # multiplies q.k
    tied_head: bool
    qk_norm: Literal["head", "projection"] | None = None  # of q and k: each head, or all at once
    qkv_bias: bool = False  # must have them; any model may
    pre_norms: bool = True  # a norm before attention and before the FFN
    post_norms: bool = False  # a norm after attention and after the FFN, before the residual
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    def kv_bytes_per_token(self, kind: BlockType) -> int:
        """Of keys and values in all layers, each head's stored as `kind`."""
        return 2 * len(self.layers) * self.kv_heads * kind.row_bytes(self.head_dim)

    def for_context(self, tokens: int) -> Self:
        """The spec of a run: longrope's factors chosen once, by the context's size, so that keys in
        the cache and queries turn alike.
        """
        return replace(
            self,
            layers=tuple(
                replace(layer, rope=layer.rope and _settled(layer.rope, tokens))
                for layer in self.layers
            ),
        )


def _settled(rope: Rope, context_tokens: int) -> Rope:
    if rope.long_factors is None:
        return rope
    factors = rope.long_factors if context_tokens > rope.original_tokens else rope.factors
    return replace(rope, factors=factors, long_factors=None, original_tokens=0)
