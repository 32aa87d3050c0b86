"""What the test factory knows of each family: its `transformers` classes, and how GGUF differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB_SIZE = 331

BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 280,  # no multiple of 16, nor of 32: ffn_down stays F32
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,  # 8 x 64 is not 256
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
# For families whose heads make up the hidden size, in llama.cpp's loader at least.
SQUARE = {"num_attention_heads": 4, "num_key_value_heads": 2}

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NORMS = {
    "pre_feedforward_layernorm": "ffn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Family:
    """`permuted`: q and k rows are reordered for adjacent-pair rope. `norms_from_one`: GGUF has
    1 + w of each norm.
    """

    gguf: str  # general.architecture
    classes: str  # {classes}Config and {classes}ForCausalLM of `transformers`
    permuted: bool = False
    norms_from_one: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # GGUF key: the config's attribute


FAMILIES = {
    "llama": Family("llama", "Llama", permuted=True),
    "mistral": Family(
        "llama",
        "Mistral",
        permuted=True,
        config={"sliding_window": 24},
        keys={"attention.sliding_window": "sliding_window"},
    ),
    "qwen2": Family("qwen2", "Qwen2"),
    "qwen3": Family("qwen3", "Qwen3"),
    # Layers 0 and 2 see a window shorter than the tests' sequences.
    "gemma2": Family(
        "gemma2",
        "Gemma2",
        norms_from_one=True,
        config={
            "sliding_window": 24,
            "query_pre_attn_scalar": 64,
            "attn_logit_softcapping": 2.0,  # low enough to show
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
        names=GEMMA_NORMS,
        keys={
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
    ),
    # Layer 5 sees everything, the others a window.
    "gemma3": Family(
        "gemma3",
        "Gemma3",
        norms_from_one=True,
        config={
            "num_hidden_layers": 7,
            "sliding_window": 24,
            "query_pre_attn_scalar": 64,
            "tie_word_embeddings": True,
        },
        names=GEMMA_NORMS,
        keys={"attention.sliding_window": "sliding_window"},
    ),
    "phi3": Family(
        "phi3",
        "Phi3",
        config=SQUARE | {"sliding_window": None},
        names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
        keys={"attention.sliding_window": "sliding_window"},
    ),
    "granite": Family(
        "granite",
        "Granite",
        permuted=True,
        config={
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 1.7,
        },
        keys={
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention.scale": "attention_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "olmo2": Family("olmo2", "Olmo2", config=SQUARE, names=POST_NORMS),
    # Layer 3 sees everything.
    "olmo3": Family(
        "olmo2",
        "Olmo3",
        config=SQUARE | {"num_hidden_layers": 5, "sliding_window": 24},
        names=POST_NORMS,
        keys={"attention.sliding_window": "sliding_window"},
    ),
    # Layer 3 is not turned.
    "smollm3": Family(
        "smollm3",
        "SmolLM3",
        permuted=True,
        config={"num_hidden_layers": 5, "use_sliding_window": False},
    ),
    "exaone4": Family(
        "exaone4",
        "Exaone4",
        config=SQUARE
        | {
            "num_hidden_layers": 5,
            "sliding_window": None,
            "layer_types": ["full_attention"] * 5,
        },
        names=POST_NORMS,
        keys={"attention.sliding_window": "sliding_window"},
    ),
    "glm4": Family(
        "glm4",
        "Glm4",
        names={
            "mlp.gate_up_proj": "ffn_up",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
    ),
    "ernie4_5": Family("ernie4_5", "Ernie4_5"),
    "gemma": Family("gemma", "Gemma", norms_from_one=True, config={"tie_word_embeddings": True}),
    # `transformers` has no InternLM 2 of its own; without the converter's cutting it is a Llama.
    "internlm2": Family("internlm2", "Llama", permuted=True, config=SQUARE),
}
