"""Rotary embedding from a GGUF's keys and tensors: base, scaling, factors, magnitude."""

import math
from struct import unpack

from flexinfer.formats.gguf_values import brief, read_range
from flexinfer.models.gguf_keys import Keys
from flexinfer.models.spec import Rope

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = ("rope_freqs.weight", LONG, SHORT)  # tensors whose values are part of the spec


def rope_from_gguf(keys: Keys, head_dim: int) -> Rope:
    """The rope of layers that see everything. FormatError, UnsupportedError."""
    dim = keys.integer("rope.dimension_count", head_dim)
    if dim > head_dim or dim % 2:
        raise keys.fail(
            f"{keys.full('rope.dimension_count')} is {dim}, not an even number of at most "
            f"{head_dim}"
        )
    base = keys.number("rope.freq_base", 10000.0)
    pairing = keys.facts.pairing
    factors = _factors(keys, "rope_freqs.weight", dim)  # llama3-type scaling, as converters bake it
    # A factor without a type means linear, as in llama.cpp.
    kind = keys.get("rope.scaling.type", "linear")
    if kind == "longrope" or LONG in keys.checkpoint.tensors:
        return _longrope(keys, Rope(base, dim, pairing, factors))
    magnitude = keys.optional_number("rope.scaling.attn_factor") or 1.0
    if kind == "none":
        return Rope(base, dim, pairing, factors, 1.0, magnitude)
    factor = keys.optional_number("rope.scaling.factor")
    if kind == "linear":
        factor = factor or keys.optional_number("rope.scale_linear") or 1.0
        return Rope(base, dim, pairing, factors, 1 / factor, magnitude)
    if kind != "yarn":
        raise keys.unsupported(
            f"{keys.full('rope.scaling.type')} is {brief(kind)}; FlexInfer knows none, linear, "
            "yarn, longrope and the factors of rope_freqs.weight"
        )
    return _yarn(keys, Rope(base, dim, pairing, factors), factor or 1.0)


def _yarn(keys: Keys, plain: Rope, factor: float) -> Rope:
    """YaRN (arXiv 2309.00071): fast pairs turn as they did, slow ones `factor` times slower.

    Those between are blended along a ramp. The bounds are rounded as `transformers` and llama.cpp
    round them; magnitude as `transformers`: the model's own, else 0.1 ln(factor) + 1.
    """
    for key, plain_value in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        value = keys.get(f"rope.scaling.{key}", plain_value)
        if value not in (plain_value, -1.0):  # -1: not set
            raise keys.unsupported(f"{keys.full(f'rope.scaling.{key}')} is {brief(value)}")
    if plain.factors is not None:
        raise keys.unsupported("both rope_freqs.weight and yarn scaling")
    if factor < 1:
        raise keys.fail(f"{keys.full('rope.scaling.factor')} is {factor}, below 1")
    if plain.base <= 1:
        raise keys.fail(f"{keys.full('rope.freq_base')} is {plain.base}, not above 1")
    tokens = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))

    def pair_that_turns(times: float) -> float:
        """The pair (a fraction) that turns so often in the original context."""
        turns = math.log(tokens) - math.log(times) - math.log(2 * math.pi)
        return plain.dim * turns / (2 * math.log(plain.base))

    first = pair_that_turns(keys.number("rope.scaling.yarn_beta_fast", 32.0))
    last = pair_that_turns(keys.number("rope.scaling.yarn_beta_slow", 1.0))
    low, high = max(math.floor(first), 0), min(math.ceil(last), plain.dim - 1)
    slowed = [
        min(1.0, max(0.0, (pair - low) / max(high - low, 0.001))) for pair in range(plain.dim // 2)
    ]
    magnitude = (
        keys.optional_number("rope.scaling.yarn_attn_factor")
        or keys.optional_number("rope.scaling.attn_factor")
        or 0.1 * math.log(factor) + 1
    )
    factors = tuple(1 / (1 - share + share / factor) for share in slowed)
    return Rope(plain.base, plain.dim, plain.pairing, factors, 1.0, magnitude)


def _longrope(keys: Keys, plain: Rope) -> Rope:
    """LongRoPE (arXiv 2402.13753): divisors for contexts up to the original one, others beyond."""
    short, long = (_factors(keys, name, plain.dim) for name in (SHORT, LONG))
    if short is None or long is None:
        raise keys.fail(f"the tensors {SHORT} and {LONG} go together, and one is missing")
    if plain.factors is not None or keys.optional_number("rope.scaling.factor"):
        raise keys.unsupported("another rope scaling beside longrope")
    return Rope(
        plain.base,
        plain.dim,
        plain.pairing,
        short,
        magnitude=keys.optional_number("rope.scaling.attn_factor") or 1.0,
        long_factors=long,
        original_tokens=keys.integer(
            "rope.scaling.original_context_length", keys.integer("context_length")
        ),
    )


def _factors(keys: Keys, name: str, dim: int) -> tuple[float, ...] | None:
    """One divisor per frequency, where the file has that tensor."""
    tensor = keys.checkpoint.tensors.get(name)
    if tensor is None:
        return None
    if tensor.shape != (dim // 2,) or tensor.block_type.name != "F32":
        raise keys.fail(
            f"{name} is {tensor.block_type.name} {list(tensor.shape)}, not F32 [{dim // 2}]"
        )
    raw = read_range(tensor.path, tensor.offset_bytes, tensor.size_bytes)
    factors: tuple[float, ...] = unpack(f"<{dim // 2}f", raw)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise keys.fail(f"{name} has factors that are not positive numbers")
    return factors
