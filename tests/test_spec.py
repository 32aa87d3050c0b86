"""Specs and weights from GGUF: the facts that keys leave out, and what is refused."""

import math
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoint_tools import changed, without
from factory import VOCAB_SIZE, make_gguf
from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.gguf import GGUFCheckpoint, open_gguf
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.from_gguf import spec_from_gguf
from flexinfer.models.spec import Layer, Rope
from flexinfer.models.weights import collect_weights

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(folder: Path) -> GGUFCheckpoint:
    make_gguf(folder / "llama.gguf", "llama", num_hidden_layers=2)
    return open_gguf(folder / "llama.gguf")


@pytest.fixture(scope="module")
def gemma(folder: Path) -> GGUFCheckpoint:
    make_gguf(folder / "gemma3.gguf", "gemma3")
    return open_gguf(folder / "gemma3.gguf")


@pytest.fixture(scope="module")
def qwen2(folder: Path) -> GGUFCheckpoint:
    make_gguf(folder / "qwen2.gguf", "qwen2", num_hidden_layers=2)
    return open_gguf(folder / "qwen2.gguf")


def test_llama(llama: GGUFCheckpoint) -> None:
    spec = spec_from_gguf(llama)
    assert (spec.dim, spec.ffn_dim, spec.heads, spec.kv_heads, spec.head_dim) == (
        256,
        280,
        8,
        1,
        64,
    )
    assert (spec.vocab_size, spec.context_tokens) == (VOCAB_SIZE, 512)
    assert spec.layers == (Layer(Rope(10000.0, 64, "adjacent")),) * 2
    assert spec.norm_eps == pytest.approx(1e-5) and spec.attention_scale == 1 / 8
    assert (spec.activation, spec.embedding_scale, spec.tied_head) == ("silu", 1.0, False)
    assert not (spec.qk_norm or spec.post_norms or spec.qkv_bias)


def test_llama_weights_are_in_order_of_use(llama: GGUFCheckpoint) -> None:
    weights = collect_weights(llama, spec_from_gguf(llama))
    roles = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    assert [(m.layer, m.role) for m in weights.matrices] == [
        *((layer, role) for layer in range(2) for role in roles),
        (-1, "output"),
    ]
    assert weights.matrices[-1].tensor is llama.tensors["output.weight"]
    assert weights.embedding is llama.tensors["token_embd.weight"]
    assert set(weights.vectors) == {
        "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight",
        "blk.1.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight",
    }  # fmt: skip


def test_a_tied_head_is_the_embedding_once(folder: Path) -> None:
    make_gguf(folder / "tied.gguf", "llama", num_hidden_layers=1, tie_word_embeddings=True)
    checkpoint = open_gguf(folder / "tied.gguf")
    spec = spec_from_gguf(checkpoint)
    weights = collect_weights(checkpoint, spec)
    assert spec.tied_head and weights.matrices[-1].tensor is weights.embedding


def test_rope_factors_and_biases(folder: Path) -> None:
    make_gguf(
        folder / "l3.gguf", "llama", num_hidden_layers=1, rope_parameters=LLAMA3_ROPE,
        attention_bias=True, mlp_bias=True,
    )  # fmt: skip
    checkpoint = open_gguf(folder / "l3.gguf")
    spec = spec_from_gguf(checkpoint)
    factors = spec.layers[0].rope.factors
    assert factors is not None and len(factors) == 32
    # Wavelengths under 64/4 positions stay, those above 64/1 turn 8 times slower.
    assert factors[0] == 1 and factors[-1] == pytest.approx(8) and 1 < factors[6] < 8
    vectors = collect_weights(checkpoint, spec).vectors
    biases = {name for name in vectors if name.endswith(".bias")}
    assert len(biases) == 7 and vectors["blk.0.ffn_up.bias"].shape == (280,)
    assert "rope_freqs.weight" not in vectors


def test_qwen2_needs_its_biases(qwen2: GGUFCheckpoint) -> None:
    spec = spec_from_gguf(qwen2)
    assert spec.layers[0].rope.pairing == "half" and spec.qkv_bias and not spec.qk_norm
    assert "blk.1.attn_k.bias" in collect_weights(qwen2, spec).vectors
    with pytest.raises(FormatError, match=r"tensor blk\.1\.attn_k\.bias is missing"):
        collect_weights(without(qwen2, "blk.1.attn_k.bias"), spec)


def test_qwen3_norms_its_heads(folder: Path) -> None:
    make_gguf(folder / "qwen3.gguf", "qwen3", num_hidden_layers=1)
    checkpoint = open_gguf(folder / "qwen3.gguf")
    spec = spec_from_gguf(checkpoint)
    assert spec.layers[0].rope.pairing == "half" and spec.qk_norm and not spec.qkv_bias
    vectors = collect_weights(checkpoint, spec).vectors
    assert vectors["blk.0.attn_q_norm.weight"].shape == (64,)


def test_gemma3(gemma: GGUFCheckpoint) -> None:
    spec = spec_from_gguf(gemma)
    local = Layer(Rope(10000.0, 64, "half"), 24)
    everywhere = Layer(Rope(1_000_000.0, 64, "half"))
    assert spec.layers == (local,) * 5 + (everywhere, local)
    assert (spec.activation, spec.embedding_scale, spec.tied_head) == ("gelu", 16.0, True)
    assert spec.qk_norm and spec.post_norms and spec.attention_scale == 1 / 8
    vectors = collect_weights(gemma, spec).vectors
    assert len(vectors) == 7 * 6 + 1


def test_gemma3_rope_scaling_is_of_global_layers_alone(gemma: GGUFCheckpoint) -> None:
    spec = spec_from_gguf(changed(gemma, {"gemma3.rope.scaling.factor": 8.0}))
    assert [layer.rope.scale for layer in spec.layers] == [1.0] * 5 + [1 / 8, 1.0]


def test_gemma3_27b_scales_by_its_heads(gemma: GGUFCheckpoint) -> None:
    tensors = dict.fromkeys(
        [*gemma.tensors, *map(str, range(62))], gemma.tensors["blk.0.attn_q.weight"]
    )
    tensors["token_embd.weight"] = gemma.tensors["token_embd.weight"]
    large = changed(replace(gemma, tensors=tensors), {"gemma3.block_count": 62})
    assert spec_from_gguf(large).attention_scale == pytest.approx(1 / math.sqrt(256 / 8))


def test_window_pattern_keys(gemma: GGUFCheckpoint) -> None:
    key = "gemma3.attention.sliding_window_pattern"
    windows = [layer.window_tokens for layer in spec_from_gguf(changed(gemma, {key: 2})).layers]
    assert windows == [24, None, 24, None, 24, None, 24]
    flags = [True, True, False, False, True, False, True]
    layers = spec_from_gguf(changed(gemma, {key: flags})).layers
    assert [layer.window_tokens is not None for layer in layers] == flags
    with pytest.raises(FormatError, match="neither a period nor 7 booleans"):
        spec_from_gguf(changed(gemma, {key: flags[:3]}))


def test_defaults_and_optional_keys(llama: GGUFCheckpoint) -> None:
    keys: dict[str, Any] = dict.fromkeys(
        ("llama.rope.freq_base", "llama.rope.dimension_count", "llama.attention.value_length")
    )
    assert spec_from_gguf(changed(llama, keys)) == spec_from_gguf(llama)
    keys = {"llama.attention.key_length": None, "llama.attention.value_length": None}
    keys |= {"llama.attention.head_count_kv": None, "llama.rope.dimension_count": None}
    spec = spec_from_gguf(changed(llama, keys))
    assert (spec.head_dim, spec.kv_heads, spec.layers[0].rope.dim) == (32, 8, 32)
    soft = changed(llama, {"llama.final_logit_softcapping": 30.0})
    assert spec_from_gguf(soft).logit_softcap == 30.0


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture", "llama.block_count", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(llama: GGUFCheckpoint, key: str) -> None:
    with pytest.raises(FormatError, match=f"key {key} is missing"):
        spec_from_gguf(changed(llama, {key: None}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 1 << 30, "has only 21 tensors"),
        ("block_count", -1, "block_count is -1, not a positive integer"),
        ("block_count", "2", "block_count is '2', not a positive integer"),
        ("embedding_length", True, "embedding_length is True, not a positive"),
        ("attention.head_count_kv", 3, "8 heads cannot share 3"),
        ("rope.dimension_count", 66, "not an even number of at most 64"),
        ("rope.dimension_count", 7, "not an even number"),
        ("rope.freq_base", math.nan, "freq_base is nan, not a positive number"),
        ("rope.freq_base", "x", "freq_base is 'x', not a number"),
    ],
)
def test_senseless_keys(llama: GGUFCheckpoint, key: str, value: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        spec_from_gguf(changed(llama, {f"llama.{key}": value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "rwkv9", "'rwkv9' is not supported"),
        ("llama.expert_count", 8, "mixture of experts"),
        ("llama.rope.scaling.type", "dynamic", "rope.scaling.type is 'dynamic'"),
        ("llama.attention.value_length", 32, "values of 32 dimensions beside keys of 64"),
        ("llama.attention.causal", False, "not causal"),
        ("llama.residual_scale", 0.5, "llama.residual_scale is 0.5"),
        ("llama.attention.temperature_scale", 0.1, "attention with a temperature"),
    ],
)
def test_unsupported_keys(llama: GGUFCheckpoint, key: str, value: object, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        spec_from_gguf(changed(llama, {key: value}))
    assert caught.value.hint and "qwen3" in caught.value.hint


def test_a_vast_yarn_factor_is_still_a_number(llama: GGUFCheckpoint) -> None:
    scaling = {"type": "yarn", "factor": 1e19, "original_context_length": 2048}
    keys = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    rope = spec_from_gguf(changed(llama, keys)).layers[0].rope
    assert rope and rope.factors and max(rope.factors) == pytest.approx(1e19)


def test_windows_of_an_architecture_that_has_none(qwen2: GGUFCheckpoint) -> None:
    with pytest.raises(UnsupportedError, match="window of 100 tokens in a context of 512"):
        spec_from_gguf(changed(qwen2, {"qwen2.attention.sliding_window": 100}))
    wide = changed(qwen2, {"qwen2.attention.sliding_window": 512})
    assert spec_from_gguf(wide) == spec_from_gguf(qwen2)


def test_head_counts_per_layer(llama: GGUFCheckpoint) -> None:
    key = "llama.attention.head_count_kv"
    assert spec_from_gguf(changed(llama, {key: array("i", [1, 1])})).kv_heads == 1
    with pytest.raises(UnsupportedError, match="head_count_kv differs from layer to layer"):
        spec_from_gguf(changed(llama, {key: array("i", [1, 2])}))


def test_tensors_missing_unknown_misshapen_or_of_a_strange_type(llama: GGUFCheckpoint) -> None:
    spec = spec_from_gguf(llama)
    with pytest.raises(FormatError, match=r"the tensor blk\.1\.ffn_up\.weight is missing"):
        collect_weights(without(llama, "blk.1.ffn_up.weight"), spec)
    with pytest.raises(FormatError, match=r"token_embd\.weight is missing or no matrix"):
        spec_from_gguf(without(llama, "token_embd.weight"))
    with pytest.raises(
        FormatError, match=r"attn_q\.weight has shape \[512, 256\], .* \[256, 256\]"
    ):
        collect_weights(llama, replace(spec, head_dim=32))
    name = "blk.0.attn_q_norm.weight"
    extra = {**llama.tensors, name: llama.tensors["output_norm.weight"]}
    with pytest.raises(UnsupportedError, match=f"no use for the tensors {name}"):
        collect_weights(replace(llama, tensors=extra), spec)
    name = "blk.1.ffn_down.weight"
    strange = replace(llama.tensors[name], block_type=BLOCK_TYPES[27])
    with pytest.raises(UnsupportedError, match=f"I64 of {name}"):
        collect_weights(replace(llama, tensors={**llama.tensors, name: strange}), spec)


def test_real_models(smollm_path: Path, gemma_path: Path) -> None:
    checkpoint = open_gguf(smollm_path)
    spec = spec_from_gguf(checkpoint)
    assert (spec.dim, len(spec.layers), spec.heads, spec.kv_heads) == (576, 30, 9, 3)
    assert spec.tied_head and spec.layers[0].rope.base == 100_000
    weights = collect_weights(checkpoint, spec)
    assert len(weights.matrices) + len(weights.vectors) == len(checkpoint.tensors) == 272

    checkpoint = open_gguf(gemma_path)
    spec = spec_from_gguf(checkpoint)
    everywhere = [n for n, layer in enumerate(spec.layers) if layer.window_tokens is None]
    assert everywhere == [5, 11, 17] and spec.layers[0].window_tokens == 512
    assert spec.vocab_size == 262_144 and spec.attention_scale == 1 / 16
    weights = collect_weights(checkpoint, spec)
    assert len(weights.matrices) + len(weights.vectors) == len(checkpoint.tensors) == 236
