"""A ModelSpec from a GGUF file's keys and the facts that the keys leave out."""

import math
from array import array
from dataclasses import dataclass
from struct import unpack
from typing import Any

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.gguf_values import read_range
from flexinfer.models.gguf_facts import FACTS, GEMMA3_27B_LAYERS, ArchitectureFacts
from flexinfer.models.spec import Layer, ModelSpec, Rope

_MAX_INTEGER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Keys:
    """The architecture's keys by their short names, with types and ranges checked."""

    checkpoint: Checkpoint
    architecture: str
    facts: ArchitectureFacts

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.checkpoint.path}: {what}", "use a sound file")

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.checkpoint.path}: {what}", f"supported are plain {', '.join(FACTS)} models"
        )

    def get(self, key: str, default: Any = None) -> Any:
        return self.checkpoint.metadata.get(self.full(key), default)

    def _required(self, key: str, default: object) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.fail(f"the key {self.full(key)} is missing")
        return value

    def integer(self, key: str, default: int | None = None, *, uniform: bool = False) -> int:
        """A positive integer; with `uniform` also a per-layer array of one and the same."""
        value = self._required(key, default)
        if uniform and isinstance(value, array) and len(value):
            if any(element != value[0] for element in value):
                raise self.unsupported(
                    f"{self.full(key)} differs from layer to layer, which FlexInfer does not know"
                )
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_INTEGER:
            raise self.fail(f"{self.full(key)} is {_brief(value)}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(key, default)
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise self.fail(f"{self.full(key)} is {_brief(value)}, not a number")
        if not math.isfinite(value) or value <= 0:
            raise self.fail(f"{self.full(key)} is {value}, not a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A positive finite number; None where it is absent or 0, which means the same."""
        return self.number(key) if self.get(key, 0) != 0 else None


def spec_from_gguf(checkpoint: Checkpoint) -> ModelSpec:
    """The hyper-parameters of a GGUF checkpoint.

    Raises FormatError for a key that is missing or senseless (it is named), UnsupportedError for an
    architecture or a feature that the dense decoder does not have.
    """
    keys = _keys(checkpoint)
    facts = keys.facts
    embedding = checkpoint.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise keys.fail("the tensor token_embd.weight is missing or no matrix")
    _refuse_unsupported(keys)

    dim = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count", uniform=True)
    head_dim = keys.integer("attention.key_length", dim // heads or None)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise keys.unsupported(f"values of {value_dim} dimensions beside keys of {head_dim}")
    kv_heads = keys.integer("attention.head_count_kv", heads, uniform=True)
    if heads % kv_heads:
        raise keys.fail(f"{heads} heads cannot share {kv_heads} key-value heads")
    layer_count = keys.integer("block_count")
    if layer_count > len(checkpoint.tensors):  # before anything is made of that length
        raise keys.fail(
            f"{keys.full('block_count')} is {layer_count}, "
            f"but the file has only {len(checkpoint.tensors)} tensors"
        )
    scaled_heads_27b = keys.architecture == "gemma3" and layer_count == GEMMA3_27B_LAYERS
    return ModelSpec(
        architecture=keys.architecture,
        layers=_layers(keys, layer_count, head_dim),
        dim=dim,
        ffn_dim=keys.integer("feed_forward_length", uniform=True),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        context_tokens=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        activation=facts.activation,
        attention_scale=1 / math.sqrt(dim / heads if scaled_heads_27b else head_dim),
        tied_head="output.weight" not in checkpoint.tensors,
        qk_norm=facts.qk_norm,
        post_norms=facts.post_norms,
        qkv_bias=facts.qkv_bias,
        embedding_scale=math.sqrt(dim) if facts.scaled_embedding else 1.0,
        attention_softcap=keys.optional_number("attn_logit_softcapping"),
        logit_softcap=keys.optional_number("final_logit_softcapping"),
    )


def _layers(keys: _Keys, count: int, head_dim: int) -> tuple[Layer, ...]:
    rope_dim = keys.integer("rope.dimension_count", head_dim)
    if rope_dim > head_dim or rope_dim % 2:
        raise keys.fail(
            f"{keys.full('rope.dimension_count')} is {rope_dim}, "
            f"not an even number of at most {head_dim}"
        )
    base = keys.number("rope.freq_base", 10000.0)
    factors = _rope_factors(keys, rope_dim)
    rope = Rope(base, rope_dim, keys.facts.pairing, factors, _rope_scale(keys))
    everywhere = Layer(rope)
    if keys.facts.window_period is None:
        return (everywhere,) * count
    local_base = keys.number("rope.freq_base_swa", keys.facts.local_rope_base or base)
    local = Layer(
        Rope(local_base, rope_dim, keys.facts.pairing), keys.integer("attention.sliding_window")
    )
    return tuple(local if windowed else everywhere for windowed in _window_pattern(keys, count))


def _window_pattern(keys: _Keys, count: int) -> list[bool]:
    """Per layer, whether it sees a window only: from the key, a period or a list, else the fact."""
    pattern = keys.get("attention.sliding_window_pattern", keys.facts.window_period)
    if isinstance(pattern, list) and len(pattern) == count:
        return [bool(windowed) for windowed in pattern]
    if isinstance(pattern, int) and pattern > 0:
        return [(layer + 1) % pattern != 0 for layer in range(count)]
    raise keys.fail(
        f"{keys.full('attention.sliding_window_pattern')} is neither a period nor {count} booleans"
    )


def _rope_scale(keys: _Keys) -> float:
    """What positions are multiplied by. A factor without a type means linear, as in llama.cpp."""
    kind = keys.get("rope.scaling.type", "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise keys.unsupported(
            f"{keys.full('rope.scaling.type')} is {_brief(kind)}; "
            "FlexInfer knows none, linear and the factors of rope_freqs.weight"
        )
    old = keys.optional_number("rope.scale_linear") or 1.0
    return 1 / (keys.optional_number("rope.scaling.factor") or old)


def _rope_factors(keys: _Keys, rope_dim: int) -> tuple[float, ...] | None:
    """llama3-type scaling: converters write one divisor per frequency as rope_freqs.weight."""
    tensor = keys.checkpoint.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.shape != (rope_dim // 2,) or tensor.block_type.name != "F32":
        raise keys.fail(
            f"rope_freqs.weight is {tensor.block_type.name} {list(tensor.shape)}, "
            f"not F32 [{rope_dim // 2}]"
        )
    raw = read_range(tensor.path, tensor.offset_bytes, tensor.size_bytes)
    factors: tuple[float, ...] = unpack(f"<{rope_dim // 2}f", raw)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise keys.fail("rope_freqs.weight has factors that are not positive numbers")
    return factors


def _refuse_unsupported(keys: _Keys) -> None:
    """Features that a file of a known architecture may ask for; to ignore them would be wrong."""
    if keys.get("expert_count", 0):
        raise keys.unsupported(
            f"a mixture of experts ({keys.full('expert_count')} is "
            f"{_brief(keys.get('expert_count'))}), which FlexInfer does not run yet"
        )
    if keys.get("attention.causal", True) is False:
        raise keys.unsupported(
            f"attention is not causal ({keys.full('attention.causal')}): "
            "an embedding model, which writes no text"
        )
    window = keys.get("attention.sliding_window", 0)
    if keys.facts.window_period is None and window:
        context = keys.integer("context_length")
        if keys.integer("attention.sliding_window") < context:
            raise keys.unsupported(
                f"a sliding window of {window} tokens in a context of "
                f"{context}, which FlexInfer does not know for {keys.architecture}"
            )


def _keys(checkpoint: Checkpoint) -> _Keys:
    architecture = checkpoint.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(
            f"{checkpoint.path}: the key general.architecture is missing or no string",
            "use a sound file",
        )
    if architecture not in FACTS:
        raise UnsupportedError(
            f"{checkpoint.path}: the architecture {_brief(architecture)} is not supported",
            f"supported are {', '.join(FACTS)}",
        )
    return _Keys(checkpoint, architecture, FACTS[architecture])


def _brief(value: object) -> str:
    return f"an array of {len(value)}" if isinstance(value, array | list) else repr(value)[:80]
