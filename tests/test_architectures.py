"""What is particular to single architectures: windows, ropes, cut tensors, multipliers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint_tools import changed, without
from factory import make_gguf
from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.gguf import GGUFCheckpoint, open_gguf
from flexinfer.models.from_gguf import spec_from_gguf
from flexinfer.models.spec import Layer, Rope
from flexinfer.models.weights import collect_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(folder: Path) -> GGUFCheckpoint:
    make_gguf(folder / "llama.gguf", "llama", num_hidden_layers=2)
    return open_gguf(folder / "llama.gguf")


def test_mistral_has_a_window_in_every_layer(llama: GGUFCheckpoint) -> None:
    windowed = spec_from_gguf(changed(llama, {"llama.attention.sliding_window": 100}))
    assert windowed.layers == (Layer(Rope(10000.0, 64, "adjacent"), 100),) * 2


def test_yarn(llama: GGUFCheckpoint) -> None:
    scaled = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 8.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    rope = spec_from_gguf(changed(llama, scaled)).layers[0].rope
    assert rope is not None and rope.factors is not None
    # Pair 0 turns 10 times in 64 positions and stays; from pair 9 on, less than once.
    assert rope.factors[0] == 1 and 1 < rope.factors[4] < 8
    assert rope.factors[9:] == pytest.approx([8.0] * 23) and rope.factors[8] < 8
    assert rope.magnitude == pytest.approx(0.1 * math.log(8) + 1)
    own = changed(llama, scaled | {"llama.rope.scaling.yarn_attn_factor": 1.5})
    assert spec_from_gguf(own).layers[0].rope == replace(rope, magnitude=1.5)
    for key, value in (("yarn_ext_factor", 0.5), ("yarn_log_multiplier", 0.1)):
        with pytest.raises(UnsupportedError, match=f"{key} is {value}"):
            spec_from_gguf(changed(llama, scaled | {f"llama.rope.scaling.{key}": value}))
    for key, value, message in (
        ("freq_base", 1.0, r"freq_base is 1\.0, not above 1"),
        ("scaling.factor", 0.5, r"factor is 0\.5, below 1"),
    ):
        with pytest.raises(FormatError, match=message):
            spec_from_gguf(changed(llama, scaled | {f"llama.rope.{key}": value}))
    for extreme in (1e-37, 1e38):
        keys = {f"llama.rope.scaling.yarn_beta_{end}": extreme for end in ("fast", "slow")}
        factors = spec_from_gguf(changed(llama, scaled | keys)).layers[0].rope
        assert factors is not None and set(factors.factors or ()) <= {1.0, 8.0}


def test_gemma2(folder: Path) -> None:
    make_gguf(folder / "gemma2.gguf", "gemma2")
    checkpoint = open_gguf(folder / "gemma2.gguf")
    spec = spec_from_gguf(checkpoint)
    assert [layer.window_tokens for layer in spec.layers] == [24, None, 24]
    assert (spec.attention_softcap, spec.logit_softcap, spec.post_norms) == (2.0, 3.0, True)
    keys = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    old = spec_from_gguf(changed(checkpoint, {f"gemma2.{key}": None for key in keys}))
    assert [layer.window_tokens for layer in old.layers] == [4096, None, 4096]
    assert (old.attention_softcap, old.logit_softcap) == (50.0, 30.0)


def test_phi3_cuts_its_tensors(folder: Path) -> None:
    make_gguf(folder / "phi3.gguf", "phi3", num_hidden_layers=1, block_type="Q4_0")
    checkpoint = open_gguf(folder / "phi3.gguf")
    weights = collect_weights(checkpoint, spec_from_gguf(checkpoint))
    tensors = {m.role: m.tensor for m in weights.matrices}
    qkv, both = (checkpoint.tensors[f"blk.0.{name}.weight"] for name in ("attn_qkv", "ffn_up"))
    assert [tensors[f"attn_{role}"].shape for role in "qkv"] == [(256, 256), (128, 256), (128, 256)]
    assert tensors["attn_q"].offset_bytes == qkv.offset_bytes
    assert tensors["attn_v"].offset_bytes == qkv.offset_bytes + 384 * qkv.row_bytes
    assert tensors["ffn_gate"] == both.part(0, 280) and tensors["ffn_up"] == both.part(280, 280)
    assert sum(tensors[f"attn_{role}"].size_bytes for role in "qkv") == qkv.size_bytes
    short = {**checkpoint.tensors, qkv.name: qkv.part(0, 500)}
    with pytest.raises(FormatError, match=r"the tensor blk\.0\.attn_q\.weight is missing"):
        collect_weights(replace(checkpoint, tensors=short), spec_from_gguf(checkpoint))


def test_longrope_chooses_by_the_context(folder: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 32,
        "long_factor": [4.0] * 32,
    }
    make_gguf(
        folder / "long.gguf", "phi3", num_hidden_layers=1, rope_parameters=rope,
        original_max_position_embeddings=128,
    )  # fmt: skip
    checkpoint = open_gguf(folder / "long.gguf")
    spec = spec_from_gguf(checkpoint)
    chosen = [spec.for_context(tokens).layers[0].rope for tokens in (128, 129)]
    assert [rope and rope.factors for rope in chosen] == [(1.0,) * 32, (4.0,) * 32]
    magnitude = math.sqrt(1 + math.log(4) / math.log(128))
    assert [rope and rope.magnitude for rope in chosen] == [pytest.approx(magnitude)] * 2
    with pytest.raises(FormatError, match="go together, and one is missing"):
        spec_from_gguf(without(checkpoint, "rope_factors_short.weight"))
    with pytest.raises(UnsupportedError, match="another rope scaling beside longrope"):
        spec_from_gguf(changed(checkpoint, {"phi3.rope.scaling.factor": 4.0}))


def test_granite_folds_its_multipliers(folder: Path) -> None:
    make_gguf(folder / "granite.gguf", "granite", num_hidden_layers=1)
    checkpoint = open_gguf(folder / "granite.gguf")
    spec = spec_from_gguf(checkpoint)
    assert spec.embedding_scale == pytest.approx(3 / 0.4)
    assert spec.norm_eps == pytest.approx(1e-5 / 0.4**2)
    assert spec.attention_scale == pytest.approx(0.2)
    assert spec.logit_scale == pytest.approx(1 / 1.7)
    with pytest.raises(UnsupportedError, match="no rope at all"):
        spec_from_gguf(changed(checkpoint, {"granite.rope.scaling.finetuned": False}))


def test_layers_that_are_not_turned(folder: Path) -> None:
    make_gguf(folder / "smollm3.gguf", "smollm3", num_hidden_layers=9)
    spec = spec_from_gguf(open_gguf(folder / "smollm3.gguf"))
    assert [n for n, layer in enumerate(spec.layers) if layer.rope is None] == [3, 7]
    make_gguf(folder / "exaone4.gguf", "exaone4")
    checkpoint = open_gguf(folder / "exaone4.gguf")
    assert all(layer.rope for layer in spec_from_gguf(checkpoint).layers)
    windowed = spec_from_gguf(changed(checkpoint, {"exaone4.attention.sliding_window": 24}))
    assert [layer.window_tokens for layer in windowed.layers] == [24, 24, 24, None, 24]
    assert [layer.rope is None for layer in windowed.layers] == [False, False, False, True, False]
