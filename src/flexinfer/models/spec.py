"""A model's hyper-parameters, normalised: one description whatever file they came from."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding. `factors` (one a pair) divide frequencies, `scale` multiplies positions."""

    base: float
    dim: int  # leading dimensions of a head that turn
    # (0,1),(2,3).. as llama's GGUF rows, or (0,d/2),(1,d/2+1)..
    pairing: Literal["adjacent", "half"]
    factors: tuple[float, ...] | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope
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
    qk_norm: bool = False
    qkv_bias: bool = False  # must have them; any model may
    post_norms: bool = False  # gemma: a norm after attention and after the FFN, before the residual
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    def kv_bytes_per_token(self, value_bytes: int) -> int:
        """Of keys and values in all layers, `value_bytes` each."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * value_bytes
