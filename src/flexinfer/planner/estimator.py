"""How long a sweep takes: arXiv 2503.03777's T = max(t_compute, IO/BW), or their sum without
prefetch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix
from flexinfer.planner.hardware import Hardware

CALL_S = 4e-6  # one kernel call from Python
CALLS_PER_LAYER = 18


@dataclass(frozen=True, slots=True)
class SweepEstimate:
    """Seconds of one sweep, and what they are made of."""

    compute_s: float
    io_s: float
    prefetch: bool

    @property
    def total_s(self) -> float:
        return max(self.compute_s, self.io_s) if self.prefetch else self.compute_s + self.io_s

    @property
    def bound_s(self) -> float:
        """The physical limit: perfect overlap."""
        return max(self.compute_s, self.io_s)


def estimate_sweep(
    spec: ModelSpec,
    matrices: Sequence[Matrix],
    streamed_bytes: int,
    hardware: Hardware,
    *,
    tokens: int,
    context_tokens: int,
    kv_value_bytes: int,
    prefetch: bool,
) -> SweepEstimate:
    """Estimate a sweep of `tokens` tokens whose attention reads `context_tokens` cached positions.

    Per matrix the larger of reading its weights once and multiplying them with every token (the
    kernels overlap the two); the head sees one token. Attention likewise: the larger of reading the
    cache once, its values taking `kv_value_bytes` each, and of its multiplications.
    """
    compute = len(spec.layers) * CALLS_PER_LAYER * CALL_S
    for matrix in matrices:
        tensor = matrix.tensor
        rates = hardware.kernels[tensor.block_type.name]
        many = 1 if matrix.layer < 0 else tokens
        ops = 2 * tensor.rows * tensor.columns * many
        compute += max(
            tensor.size_bytes / rates.bytes_per_s, ops / rates.ops_per_s if many > 1 else 0
        )
    per_key = 2 * 2 * spec.heads * spec.head_dim  # a score and a sum, an addition to each product
    per_position = spec.kv_bytes_per_token(kv_value_bytes) / len(spec.layers)
    for layer in spec.layers:
        seen = min(context_tokens, tokens + (layer.window_tokens or context_tokens))
        pairs = visible_keys(context_tokens - tokens, tokens, layer.window_tokens)
        compute += max(
            seen * per_position / hardware.memory_bytes_per_s,
            pairs * per_key / hardware.attention_ops_per_s,
        )
    return SweepEstimate(compute, streamed_bytes / hardware.disk_bytes_per_s, prefetch)


def visible_keys(start: int, tokens: int, window_tokens: int | None) -> int:
    """Keys that the tokens at positions `start` .. see, themselves included, all added up."""
    growing = tokens
    if window_tokens is not None:
        growing = min(tokens, max(0, window_tokens - start))  # those that a window does not limit
    full = growing * start + growing * (growing + 1) // 2
    return full + (tokens - growing) * (window_tokens or 0)
