"""Tiny random models, the same weights as a GGUF file and as a `transformers` model.

What GGUF stores differently is written here and in `families` independently of `flexinfer`: llama's
q and k rows reordered for adjacent-pair rope, gemma's norms as 1 + w, rope factors as tensors.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from families import BASE, FAMILIES, LAYER_NAMES, VOCAB_SIZE, Family

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

    torch.set_num_threads(1)  # more would mostly wait for each other with models so small
    family = FAMILIES[architecture]
    plain_config = getattr(transformers, f"{family.classes}Config")
    config_class = getattr(transformers, f"{family.classes}TextConfig", plain_config)
    config = config_class(**(BASE | dict(family.config) | overrides))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family.classes}ForCausalLM")(config).float().eval()

    writer = gguf.GGUFWriter(path, family.gguf)
    _write_keys(writer, family, config)
    _write_tokenizer(writer, config.vocab_size)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _random_values(rng, name, tuple(parameter.shape), family)
            stored, raw = _store(rng, values, block_type)
            parameter.copy_(torch.from_numpy(values if raw is None else dequantize(raw, stored)))
            written = values if raw is None else raw
            if family.permuted and ("q_proj" in name or "k_proj" in name):
                heads = (
                    config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
                )
                written = _adjacent_pairs(written, heads)
            if family.norms_from_one and "norm" in name:
                written = written + 1
            writer.add_tensor(_gguf_name(name, family), written, raw_dtype=stored)
        _write_rope_factors(writer, config, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _random_values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], family: Family
) -> np.ndarray:
    """Sizes that keep activations and logits near 1, so that every part shows in the logits."""
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return values * np.float32(0.2) + np.float32(not family.norms_from_one)
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


def _gguf_name(name: str, family: Family) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(LAYER_NAMES | dict(family.names))[part]}.{kind}"


def _rope_parameters(config: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = config.rope_parameters
    return parameters.get("full_attention", parameters)


def _write_keys(writer: gguf.GGUFWriter, family: Family, config: Any) -> None:
    rope = _rope_parameters(config)
    writer.add_name(f"tiny {family.gguf}")
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
    if not family.gguf.startswith("gemma"):
        turning = rope.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(head_dim * turning))
    for key, attribute in family.keys.items():
        if (value := getattr(config, attribute)) is not None:
            add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
            add(f"{family.gguf}.{key}", value)
    _write_rope_scaling(writer, family, config, rope)


def _write_rope_scaling(
    writer: gguf.GGUFWriter, family: Family, config: Any, rope: dict[str, Any]
) -> None:
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key in ("beta_fast", "beta_slow"):
            if rope.get(key):
                writer.add_float32(f"{family.gguf}.rope.scaling.yarn_{key}", rope[key])
        if magnitude := rope.get("attention_factor"):
            olmo = family.gguf == "olmo2"  # its converter has a key of its own
            kind = "attn_factor" if olmo else "yarn_attn_factor"
            writer.add_float32(f"{family.gguf}.rope.scaling.{kind}", magnitude)
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(stretch) / np.log(original)))


def _write_rope_factors(writer: gguf.GGUFWriter, config: Any, model: Any) -> None:
    rope = _rope_parameters(config)
    if rope["rope_type"] == "llama3":
        frequencies = model.model.rotary_emb.inv_freq.double().numpy()
        pairs = np.arange(len(frequencies))
        plain = rope["rope_theta"] ** (-pairs / len(frequencies))
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).astype(np.float32))
    if rope["rope_type"] == "longrope":
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


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
