"""Models without their weights: known shapes by name, or a config.json, for plans alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexinfer.errors import FormatError, OptionError, UnsupportedError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.models.spec import Layer, ModelSpec, Rope
from flexinfer.models.weights import Matrix, ModelWeights, matrix_shapes

F32 = BLOCK_TYPES[0]
DEFAULT_TYPE = "BF16"
OPT = "opt"
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
MAX = 1 << 24  # of any number in a config


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as a plan needs it; its tensors lie in no file."""

    name: str
    spec: ModelSpec
    weights: ModelWeights


def _llama(dim: int, ffn: int, layers: int, heads: int, kv: int, vocab: int, context: int) -> Any:
    return {
        "model_type": "llama",
        "hidden_size": dim,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": context,
    }


def _opt(dim: int, layers: int, heads: int) -> Any:
    return {
        "model_type": OPT,
        "hidden_size": dim,
        "ffn_dim": 4 * dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    }


# As the models' own config.json have it (OPT: arXiv 2205.01068, table 1).
NAMED: Mapping[str, Mapping[str, Any]] = {
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "llama-2-7b": _llama(4096, 11008, 32, 32, 32, 32000, 4096),
    "llama-2-13b": _llama(5120, 13824, 40, 40, 40, 32000, 4096),
    "codellama-34b": _llama(8192, 22016, 48, 64, 8, 32000, 16384),
    "llama-2-70b": _llama(8192, 28672, 80, 64, 8, 32000, 4096),
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, 128256, 8192),
    "llama-3-70b": _llama(8192, 28672, 80, 64, 8, 128256, 8192),
}


def named_shape(name: str, type_name: str = DEFAULT_TYPE) -> Shape:
    """A model that NAMED has. Raises OptionError for a type that is none."""
    return _shape(name, NAMED[name], type_name)


def shape_from_config(path: Path, type_name: str = DEFAULT_TYPE) -> Shape:
    """From a Hugging Face config.json.

    Raises FormatError for a damaged one, UnsupportedError for another family, OptionError for a
    type that is none.
    """
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}", "name a config.json") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}", "use a sound file") from error
    if not isinstance(config, dict):
        raise FormatError(f"{path}: not an object", "use a model's config.json")
    return _shape(str(path), config, type_name)


def block_type(name: str) -> BlockType:
    """Raises OptionError for a type that is none, or has no kernel."""
    for kind in BLOCK_TYPES.values():
        if kind.name == name.upper() and kind.has_kernel:
            return kind
    known = ", ".join(kind.name for kind in BLOCK_TYPES.values() if kind.has_kernel)
    raise OptionError(f"unknown --type {name!r}", f"known: {known}")


def _shape(name: str, config: Mapping[str, Any], type_name: str) -> Shape:
    family = config.get("model_type")
    if family not in (*LLAMA_LIKE, OPT):
        raise UnsupportedError(
            f"{name}: model_type is {family!r}, which no plan is made for from a config",
            f"known: {', '.join((*LLAMA_LIKE, OPT))}; or give a GGUF file",
        )
    numbers = _Numbers(name, config)
    dim, heads = numbers.get("hidden_size"), numbers.get("num_attention_heads")
    head_dim = numbers.get("head_dim", dim // heads or None)
    kv_heads = numbers.get("num_key_value_heads", heads)
    if heads % kv_heads:
        raise FormatError(
            f"{name}: {heads} heads cannot share {kv_heads} key-value heads", "use a sound file"
        )
    windowed = family == "mistral" and config.get("sliding_window") is not None
    window = numbers.get("sliding_window") if windowed else None
    opt = family == OPT
    rope = None if opt else Rope(10000.0, head_dim, "half")
    spec = ModelSpec(
        architecture=family,
        layers=(Layer(rope, window),) * numbers.get("num_hidden_layers", most=4096),
        dim=dim,
        ffn_dim=numbers.get("ffn_dim" if opt else "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=numbers.get("vocab_size"),
        context_tokens=numbers.get("max_position_embeddings"),
        norm_eps=1e-5,
        activation="silu",  # a plan does not depend on which
        attention_scale=head_dim**-0.5,
        tied_head=config.get("tie_word_embeddings", opt) is True,
        qk_norm="head" if family == "qwen3" else None,
    )
    return Shape(name, spec, _weights(name, spec, block_type(type_name)))


class _Numbers:
    """A config's whole numbers, each within reason."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name = name
        self._config = config

    def get(self, key: str, default: int | None = None, most: int = MAX) -> int:
        value = self._config.get(key)
        if value is None:
            value = default
        if value is None:
            raise FormatError(f"{self._name}: {key} is missing", "use a model's config.json")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise FormatError(
                f"{self._name}: {key} is {value!r}; it must be a whole number, 1 to {most}",
                "use a sound file",
            )
        return value


def _weights(name: str, spec: ModelSpec, kind: BlockType) -> ModelWeights:
    """All matrices of one type, side by side; norms and biases float32.

    OPT has no gate, and biases everywhere; its table of positions is a gather, like the embedding.
    """
    path, at = Path(name), 0

    def tensor(label: str, shape: tuple[int, ...], kind: BlockType) -> TensorInfo:
        nonlocal at
        columns = shape[-1]
        if columns % kind.block_values:
            raise OptionError(
                f"{name}: {label} has {columns} columns, no multiple of the "
                f"{kind.block_values} values of a {kind.name} block",
                "give another --type",
            )
        size = kind.row_bytes(columns) * (shape[0] if len(shape) > 1 else 1)
        info = TensorInfo(label, shape, kind, path, at, size)
        at += size
        return info

    opt = spec.architecture == OPT
    shapes = matrix_shapes(spec)
    if opt:
        del shapes["ffn_gate"]
    embedding = tensor("token_embd.weight", (spec.vocab_size, spec.dim), kind)
    matrices, vectors = [], {}
    for layer in range(len(spec.layers)):
        sizes = {f"{norm}_norm.weight": spec.dim for norm in ("attn", "ffn")}
        for role, shape in shapes.items():
            matrix = tensor(f"blk.{layer}.{role}.weight", shape, kind)
            matrices.append(Matrix(matrix, layer, role))
            if opt:
                sizes[f"{role}.bias"] = shape[0]
        for suffix, size in sizes.items():
            vectors[f"blk.{layer}.{suffix}"] = tensor(f"blk.{layer}.{suffix}", (size,), F32)
    vectors["output_norm.weight"] = tensor("output_norm.weight", (spec.dim,), F32)
    head = embedding
    if not spec.tied_head:
        head = tensor("output.weight", (spec.vocab_size, spec.dim), kind)
    return ModelWeights(embedding, vectors, (*matrices, Matrix(head, -1, "output")))
