"""A ModelSpec from a GGUF file's keys and the facts that the keys leave out."""

import math
from dataclasses import replace

from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.models.gguf_facts import SCALED_BY_HEADS
from flexinfer.models.gguf_keys import Keys, brief, open_keys
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
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        activation=facts.activation,
        attention_scale=1 / math.sqrt(dim / heads if by_heads else head_dim),
        tied_head="output.weight" not in checkpoint.tensors,
        qk_norm=facts.qk_norm,
        pre_norms=facts.pre_norms,
        post_norms=facts.post_norms,
        qkv_bias=facts.qkv_bias,
        embedding_scale=math.sqrt(dim) if facts.scaled_embedding else 1.0,
        attention_softcap=keys.optional_number("attn_logit_softcapping"),
        logit_softcap=keys.optional_number("final_logit_softcapping"),
    )


def _layers(keys: Keys, count: int, head_dim: int) -> tuple[Layer, ...]:
    rope = rope_from_gguf(keys, head_dim)
    everywhere = Layer(rope)
    if not keys.get("attention.sliding_window", 0) or keys.facts.window_period is None:
        return (everywhere,) * count
    base = keys.number("rope.freq_base_swa", keys.facts.local_rope_base or rope.base)
    local_rope = replace(rope, base=base)
    if not keys.facts.scaled_local_rope:
        local_rope = Rope(base, rope.dim, rope.pairing)
    local = Layer(local_rope, keys.integer("attention.sliding_window"))
    return tuple(local if windowed else everywhere for windowed in _window_pattern(keys, count))


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
