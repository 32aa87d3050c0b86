"""GGUF is not HF: what a GGUF file means without saying so, per architecture.

Sources are llama.cpp's converter and loaders and the models in `transformers`. Each fact is checked
against `transformers` with the same weights by the tests of the decoder; docs/models.md says what
else was compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ArchitectureFacts:
    """What the keys of one architecture leave unsaid."""

    pairing: Literal["adjacent", "half"]
    activation: Literal["silu", "gelu"] = "silu"
    qk_norm: Literal["head", "projection"] | None = None
    pre_norms: bool = True
    post_norms: bool = False
    qkv_bias: bool = False
    scaled_embedding: bool = False
    multipliers: bool = False  # embedding, residual, attention and logits are scaled by keys
    # Where there is a window, the last layer of each period sees everything; 0: none does.
    window_period: int | None = None
    local_rope_base: float | None = None  # of layers with a window, where it differs
    scaled_local_rope: bool = True  # rope scaling belongs to layers with a window, too
    # Every so many layers are not told positions; where windows_turn, all that see everything.
    unturned_period: int | None = None
    windows_turn: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)  # of keys that may be absent


FACTS: dict[str, ArchitectureFacts] = {
    # llama.cpp convert_hf_to_gguf.py, LlamaModel.permute: the rows of q and k are reordered so that
    # the two values of a rotated pair are neighbours (Mistral and Llama 1-3 alike). A window is
    # Mistral's: HF MistralModel gives it to every layer.
    "llama": ArchitectureFacts(pairing="adjacent", window_period=0),
    # No permutation in the converter's Qwen2Model, hence rope as in HF's rotate_half. HF's
    # Qwen2Attention has biases on q, k and v, always.
    "qwen2": ArchitectureFacts(pairing="half", qkv_bias=True),
    # HF Qwen3Attention: q_norm and k_norm over each head before rope; no biases as published.
    "qwen3": ArchitectureFacts(pairing="half", qk_norm="head"),
    # - Norms: the converter adds 1 to every norm weight, so here (as in all Gemmas) they just
    #   multiply.
    # - Embedding times sqrt(dim), as in Gemma 3 below.
    # - Every second layer sees everything: HF Gemma2Config.layer_types, llama.cpp's swa_period 2;
    #   rope is the same in all.
    # - Files from before the keys existed: llama.cpp's loader has these values.
    "gemma2": ArchitectureFacts(
        pairing="half",
        activation="gelu",
        post_norms=True,
        scaled_embedding=True,
        window_period=2,
        defaults={
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    # - Embedding times sqrt(dim): HF Gemma3TextScaledWordEmbedding (which rounds the factor to the
    #   model's dtype); llama.cpp's gemma3 graph multiplies by sqrtf(n_embd) in float32, as we do.
    # - Local rope base 10000 and one global layer in six: HF Gemma3TextConfig
    #   (rope_local_base_freq, sliding_window_pattern); constants in llama.cpp's gemma3 loader.
    # - Rope scaling belongs to the global layers alone: HF gives the local rope the default type.
    "gemma3": ArchitectureFacts(
        pairing="half",
        activation="gelu",
        qk_norm="head",
        post_norms=True,
        scaled_embedding=True,
        window_period=6,
        local_rope_base=10000.0,
        scaled_local_rope=False,
    ),
    # - One tensor for q, k and v, one for the FFN's gate and up (HF Phi3Attention.qkv_proj,
    #   Phi3MLP.gate_up_proj); no permutation.
    # - HF Phi3Model gives every layer the window of its config; llama.cpp ignores the key.
    "phi3": ArchitectureFacts(pairing="half", window_period=0),
    # The converter's GraniteModel is its LlamaModel (permuted) with four multipliers in keys;
    # llama.cpp's granite graph and HF GraniteModel apply them alike.
    "granite": ArchitectureFacts(pairing="adjacent", multipliers=True),
    # - No norm before attention and the FFN, one after each; q_norm and k_norm over all heads at
    #   once (HF Olmo2Attention); no permutation (the converter's Olmo2Model).
    # - Olmo 3 is stored as olmo2 with windows; their layers have rope without scaling (HF
    #   Olmo3Model, llama.cpp's olmo2 graph).
    "olmo2": ArchitectureFacts(
        pairing="half",
        qk_norm="projection",
        pre_norms=False,
        post_norms=True,
        window_period=4,
        scaled_local_rope=False,
    ),
    # Permuted as llama. Every fourth layer is not turned: HF SmolLM3Config's
    # no_rope_layer_interval, a constant (n_no_rope_layer_step) in llama.cpp's loader.
    "smollm3": ArchitectureFacts(pairing="adjacent", unturned_period=4),
    # Norms as olmo2, but q_norm and k_norm over each head. Where there are windows, layers that
    # see everything are not turned (HF Exaone4Attention, llama.cpp's exaone4 graph).
    "exaone4": ArchitectureFacts(
        pairing="half",
        qk_norm="head",
        pre_norms=False,
        post_norms=True,
        window_period=4,
        windows_turn=True,
    ),
    # HF's Glm4 and Ernie 4.5 turn neighbours (rotate_half by even and odd), so nothing is permuted;
    # glm4 turns the first half of a head, has norms on both sides and one tensor for gate and up.
    "glm4": ArchitectureFacts(pairing="adjacent", post_norms=True),
    "ernie4_5": ArchitectureFacts(pairing="adjacent"),
    # The first Gemma: none of what came with the second.
    "gemma": ArchitectureFacts(pairing="half", activation="gelu", scaled_embedding=True),
    # The converter cuts wqkv into q, k and v and permutes them as llama's.
    "internlm2": ArchitectureFacts(pairing="adjacent"),
}

# The largest Gemma 2 and 3 scale q.k by 1/sqrt(dim/heads): their config.json have a
# query_pre_attn_scalar (144, 168) other than head_dim, which the converter drops; llama.cpp knows
# the models by their layers.
SCALED_BY_HEADS = {("gemma2", 46), ("gemma3", 62)}
