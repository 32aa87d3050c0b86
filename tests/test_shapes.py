"""Models without weights: their sizes are those of the real ones."""

import json
import re
from pathlib import Path

import pytest
import transformers

from flexinfer.errors import FormatError, OptionError, UnsupportedError
from flexinfer.models.shapes import NAMED, Shape, named_shape, shape_from_config


def parameters(shape: Shape) -> int:
    """Of all matrices, the embedding once where the head is the same."""
    tensors = [m.tensor for m in shape.weights.matrices]
    if not shape.spec.tied_head:
        tensors.append(shape.weights.embedding)
    tensors += shape.weights.vectors.values()
    return sum(t.rows * t.columns for t in tensors)


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # as the papers and model cards have them
        ("llama-2-7b", 6.738),
        ("llama-2-13b", 13.016),
        ("codellama-34b", 33.744),
        ("llama-2-70b", 68.977),
        ("llama-3-8b", 8.030),
        ("llama-3-70b", 70.554),
    ],
)
def test_llamas_have_their_parameters(name: str, billions: float) -> None:
    assert parameters(named_shape(name)) / 1e9 == pytest.approx(billions, abs=1e-3)


@pytest.mark.parametrize("name", ["opt-30b", "opt-66b"])
def test_opts_have_the_parameters_of_transformers(name: str) -> None:
    """But for the biases of their norms and the positions, which no plan streams."""
    shape, config = named_shape(name), dict(NAMED[name])
    import torch

    with torch.device("meta"):
        model = transformers.OPTForCausalLM(transformers.OPTConfig(**config))
    positions = (2048 + 2) * shape.spec.dim
    norms = (2 * len(shape.spec.layers) + 1) * shape.spec.dim
    total = sum(p.numel() for p in model.parameters())
    assert parameters(shape) == total - positions - norms


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_config_of_transformers_gives_the_models_sizes(family: str, tmp_path: Path) -> None:
    import torch

    config = getattr(transformers, f"{family}Config")(
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=1000,
        tie_word_embeddings=family == "Qwen3",
    )
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    shape = shape_from_config(tmp_path / "config.json", "F32")
    large = [p for p in model.parameters() if p.dim() == 2]
    expected = sum(p.numel() for p in large)
    small = sum(t.columns for t in shape.weights.vectors.values())
    assert parameters(shape) - small == expected
    assert shape.spec.head_dim == 32 and shape.spec.vocab_size == 1000


def test_types_decide_the_bytes() -> None:
    whole = sum(m.tensor.size_bytes for m in named_shape("llama-2-7b").weights.matrices)
    small = sum(m.tensor.size_bytes for m in named_shape("llama-2-7b", "q4_0").weights.matrices)
    assert whole / small == pytest.approx(2 * 32 / 18)
    with pytest.raises(OptionError, match="unknown --type 'Q9'"):
        named_shape("llama-2-7b", "Q9")
    with pytest.raises(OptionError, match="unknown --type 'IQ2_XS'"):
        named_shape("llama-2-7b", "IQ2_XS")


def test_a_window_is_of_every_layer(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = dict(NAMED["llama-3-8b"]) | {"model_type": "mistral", "sliding_window": 4096}
    path.write_text(json.dumps(config))
    layers = shape_from_config(path).spec.layers
    assert len(layers) == 32 and {layer.window_tokens for layer in layers} == {4096}


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"model_type": "mamba"}, UnsupportedError, "model_type is 'mamba'"),
        ({"hidden_size": None}, FormatError, "hidden_size is missing"),
        ({"hidden_size": 0}, FormatError, "hidden_size is 0"),
        ({"hidden_size": 1.5}, FormatError, "hidden_size is 1.5"),
        ({"num_hidden_layers": 10**9}, FormatError, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 7}, FormatError, "32 heads cannot share 7"),
        ({"intermediate_size": 11009}, OptionError, "11009 columns, no multiple of the 32"),
    ],
)
def test_a_config_that_makes_no_sense_is_named(
    tmp_path: Path, change: dict, error: type[Exception], named: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(NAMED["llama-2-7b"]) | change))
    with pytest.raises(error, match=re.escape(named)) as refused:
        shape_from_config(path, "Q4_0")
    assert str(path) in str(refused.value) and refused.value.hint
    path.write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        shape_from_config(path)
    path.write_text("[]")
    with pytest.raises(FormatError, match="not an object"):
        shape_from_config(path)
