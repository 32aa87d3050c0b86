"""A ModelSpec from a GGUF file's keys and the facts that the keys leave out."""

import math
from dataclasses import dataclass, replace
from typing import Self

from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.gguf_values import brief
from flexinfer.models.gguf_facts import SCALED_BY_HEADS
from flexinfer.models.gguf_keys import Keys, open_keys
from flexinfer.models.gguf_rope import rope_from_gguf
from flexinfer.models.spec import Layer, ModelSpec, Rope


def spec_from_gguf(checkpoint: Checkpoint) -> ModelSpec:
    """The hyper-parameters of a GGUF checkpoint.

    Raises FormatError for a key that is missing or senseless (it is named), UnsupportedError for an
    architecture or a feature that the dense decoder does not have.
    """
    keys = open_keys(checkpoint)
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
    scales = _Scales.of(keys)
    by_heads = (keys.architecture, layer_count) in SCALED_BY_HEADS
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
        norm_eps=keys.number("attention.layer_norm_rms_epsilon") / scales.residual**2,
        activation=facts.activation,
        attention_scale=scales.attention or 1 / math.sqrt(dim / heads if by_heads else head_dim),
        tied_head="output.weight" not in checkpoint.tensors,
        qk_norm=facts.qk_norm,
        pre_norms=facts.pre_norms,
        post_norms=facts.post_norms,
        qkv_bias=facts.qkv_bias,
        embedding_scale=(math.sqrt(dim) if facts.scaled_embedding else scales.embedding)
        / scales.residual,
        logit_scale=1 / scales.logits,
        attention_softcap=keys.optional_number("attn_logit_softcapping"),
        logit_softcap=keys.optional_number("final_logit_softcapping"),
    )


@dataclass(frozen=True, slots=True)
class _Scales:
    """Granite's multipliers, all 1 (attention: None, the usual one) where there are none.

    What attention and the FFN add is multiplied by `residual` there. Here the hidden state is kept
    divided by it instead, which no norm notices but for its epsilon.
    """

    embedding: float
    residual: float
    attention: float | None
    logits: float  # they are divided by it

    @classmethod
    def of(cls, keys: Keys) -> Self:
        names = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")
        embedding, residual, attention, logits = map(keys.optional_number, names)
        if not keys.facts.multipliers:
            for name, value in zip(names, (embedding, residual, attention, logits), strict=True):
                if value not in (None, 1.0):
                    raise keys.unsupported(f"{keys.full(name)} is {value}")
            return cls(1.0, 1.0, None, 1.0)
        return cls(embedding or 1.0, residual or 1.0, attention, logits or 1.0)


def _layers(keys: Keys, count: int, head_dim: int) -> tuple[Layer, ...]:
    facts, rope = keys.facts, rope_from_gguf(keys, head_dim)
    window, local_rope = None, rope
    windowed = [False] * count
    if facts.window_period is not None and keys.get("attention.sliding_window", 0):
        window = keys.integer("attention.sliding_window")
        windowed = _window_pattern(keys, count)
        base = keys.number("rope.freq_base_swa", facts.local_rope_base or rope.base)
        plain = Rope(base, rope.dim, rope.pairing)
        local_rope = replace(rope, base=base) if facts.scaled_local_rope else plain
    everywhere = Layer(None if window and facts.windows_turn else rope)
    layers = [Layer(local_rope, window) if local else everywhere for local in windowed]
    if facts.unturned_period:
        for index in range(facts.unturned_period - 1, count, facts.unturned_period):
            layers[index] = replace(layers[index], rope=None)
    return tuple(layers)


def _window_pattern(keys: Keys, count: int) -> list[bool]:
    """Per layer, whether it sees a window only: from the key, a period or a list, else the fact."""
    pattern = keys.get("attention.sliding_window_pattern", keys.facts.window_period)
    if isinstance(pattern, list) and len(pattern) == count:
        return [bool(windowed) for windowed in pattern]
    if isinstance(pattern, int) and pattern >= 0:
        return [not pattern or (layer + 1) % pattern != 0 for layer in range(count)]
    raise keys.fail(
        f"{keys.full('attention.sliding_window_pattern')} is neither a period nor {count} booleans"
    )


def _refuse_unsupported(keys: Keys) -> None:
    """Features that a file of a known architecture may ask for; to ignore them would be wrong."""
    if keys.get("expert_count", 0):
        raise keys.unsupported(
            f"a mixture of experts ({keys.full('expert_count')} is "
            f"{brief(keys.get('expert_count'))}), which FlexInfer does not run yet"
        )
    if keys.get("attention.temperature_scale", 0) or keys.get("nextn_predict_layers", 0):
        raise keys.unsupported("attention with a temperature, or layers that predict further")
    if keys.get("rope.scaling.finetuned") is False and keys.facts.multipliers:
        raise keys.unsupported(f"{keys.full('rope.scaling.finetuned')} is false: no rope at all")
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
