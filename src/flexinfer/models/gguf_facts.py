"""GGUF is not HF: what a GGUF file means without saying so, per architecture.

Each fact is checked against `transformers` with the same weights by the tests of the decoder.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ArchitectureFacts:
    """What the keys of one architecture leave unsaid."""

    pairing: Literal["adjacent", "half"]
    activation: Literal["silu", "gelu"] = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    qkv_bias: bool = False
    scaled_embedding: bool = False
    local_rope_base: float | None = None  # of layers with a window, where it differs
    window_period: int | None = None  # the last layer of each period sees everything


FACTS: dict[str, ArchitectureFacts] = {
    # llama.cpp convert_hf_to_gguf.py, LlamaModel.permute: the rows of q and k are reordered so that
    # the two values of a rotated pair are neighbours (Mistral and Llama 1-3 alike).
    "llama": ArchitectureFacts(pairing="adjacent"),
    # No permutation in the converter's Qwen2Model, hence rope as in HF's rotate_half. HF's
    # Qwen2Attention has biases on q, k and v, always.
    "qwen2": ArchitectureFacts(pairing="half", qkv_bias=True),
    # HF Qwen3Attention: q_norm and k_norm over each head before rope; no biases as published.
    "qwen3": ArchitectureFacts(pairing="half", qk_norm=True),
    # - Norms: the converter's Gemma3Model adds 1 to every norm weight, so here they just multiply.
    # - Embedding times sqrt(dim): HF Gemma3TextScaledWordEmbedding (which rounds the factor to the
    #   model's dtype); llama.cpp's gemma3 graph multiplies by sqrtf(n_embd) in float32, as we do.
    # - Local rope base 10000 and one global layer in six: HF Gemma3TextConfig
    #   (rope_local_base_freq, sliding_window_pattern); constants in llama.cpp's gemma3 loader.
    # - Rope scaling belongs to the global layers alone: HF gives the local rope the default type.
    "gemma3": ArchitectureFacts(
        pairing="half",
        activation="gelu",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        local_rope_base=10000.0,
        window_period=6,
    ),
}

# Gemma 3 27B alone scales q.k by 1/sqrt(dim/heads) = 1/sqrt(168): its config.json has
# query_pre_attn_scalar 168, which the converter drops; llama.cpp knows the model by its 62 layers.
GEMMA3_27B_LAYERS = 62
