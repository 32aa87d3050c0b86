"""Tiny random models, the same weights as a GGUF file and as a `transformers` model.

What GGUF stores differently is written here independently of `flexinfer`: llama's q and k rows
reordered for adjacent-pair rope, gemma's norms as 1 + w, llama3's rope factors as a tensor.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

VOCAB_SIZE = 331

_BASE: dict[str, Any] = {
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
_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    # Layer 5 sees everything, the others a window shorter than the tests' sequences.
    "gemma3": {
        "num_hidden_layers": 7,
        "sliding_window": 24,
        "query_pre_attn_scalar": 64,
        "tie_word_embeddings": True,
    },
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
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
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Types that `gguf` cannot quantise to are made of random bytes: where their float16 scales lie, and
# the size of each so that the values' mean is about 0.
_RANDOM_BLOCKS = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}


def make_gguf(
    path: Path, architecture: str, *, block_type: str = "F32", seed: int = 0, **overrides: Any
) -> Any:
    """Writes a GGUF file and returns the float32 `transformers` model of the very same values.

    `overrides` go to the model's config: `tie_word_embeddings`, `attention_bias`, `mlp_bias`,
    `rope_parameters={"rope_type": "llama3", ...}`, sizes. Matrices of `block_type` are quantised
    first and given to the model dequantised; those whose columns do not fill blocks stay F32.
    """
    import torch
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }
    config_class, model_class = classes[architecture]
    config = config_class(**(_BASE | _OWN[architecture] | overrides))
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()

    writer = gguf.GGUFWriter(path, architecture)
    _write_keys(writer, architecture, config)
    _write_tokenizer(writer, config.vocab_size)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _random_values(rng, name, tuple(parameter.shape), architecture)
            stored, raw = _store(rng, values, block_type)
            parameter.copy_(torch.from_numpy(values if raw is None else dequantize(raw, stored)))
            written = values if raw is None else raw
            if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
                heads = (
                    config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
                )
                written = _adjacent_pairs(written, heads)
            if architecture == "gemma3" and "norm" in name:
                written = written + 1
            writer.add_tensor(_gguf_name(name, architecture), written, raw_dtype=stored)
        _write_rope_factors(writer, architecture, config, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _random_values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], architecture: str
) -> np.ndarray:
    """Sizes that keep activations and logits near 1, so that every part shows in the logits."""
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return values * np.float32(0.2) + np.float32(architecture != "gemma3")
    if len(shape) == 1:
        return values * np.float32(0.3)
    return values / np.float32(np.sqrt(shape[1]))


def _store(
    rng: np.random.Generator, values: np.ndarray, block_type: str
) -> tuple[gguf.GGMLQuantizationType, np.ndarray | None]:
    """The type that the values are stored in, and their blocks unless that is F32."""
    wanted = gguf.GGMLQuantizationType[block_type]
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[wanted]
    if values.ndim == 1 or values.shape[1] % block_values or block_type == "F32":
        return gguf.GGMLQuantizationType.F32, None
    if block_type not in _RANDOM_BLOCKS:
        return wanted, quantize(values, wanted)
    rows, columns = values.shape
    blocks = rng.integers(0, 256, (rows, columns // block_values, block_bytes), dtype=np.uint8)
    for scale in (1.0, None):  # first to see how large the values come out
        if scale is None:
            scale = float(values.std() / dequantize(blocks.reshape(rows, -1), wanted).std())
        for offset, factor in _RANDOM_BLOCKS[block_type].items():
            blocks[:, :, offset : offset + 2] = np.array([scale * factor], np.float16).view(
                np.uint8
            )
    return wanted, blocks.reshape(rows, -1)


def _adjacent_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows i and i + head_dim/2 of each head become neighbours."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _gguf_name(name: str, architecture: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    names = _LAYER_NAMES | (
        {
            "pre_feedforward_layernorm": "ffn_norm",
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
        if architecture == "gemma3"
        else {"post_attention_layernorm": "ffn_norm"}
    )
    return f"blk.{layer}.{names[part]}.{kind}"


def _rope_parameters(architecture: str, config: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = config.rope_parameters
    return parameters["full_attention"] if architecture == "gemma3" else parameters


def _write_keys(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    rope = _rope_parameters(architecture, config)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _write_rope_factors(
    writer: gguf.GGUFWriter, architecture: str, config: Any, model: Any
) -> None:
    rope = _rope_parameters(architecture, config)
    if rope["rope_type"] == "llama3":
        frequencies = model.model.rotary_emb.inv_freq.double().numpy()
        pairs = np.arange(len(frequencies))
        plain = rope["rope_theta"] ** (-pairs / len(frequencies))
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).astype(np.float32))


def _write_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """A byte-level BPE vocabulary trained on a few words; ids beyond it are unused tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, VOCAB_SIZE),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([__doc__ + _CHAT_TEMPLATE], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    types = [gguf.TokenType.CONTROL] * len(special)
    types += [gguf.TokenType.NORMAL] * (len(tokens) - len(special))
    unused = vocab_size - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + [f"[unused{i}]" for i in range(unused)])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * unused)
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_CHAT_TEMPLATE)
