"""How long a sweep takes: arXiv 2503.03777's T = max(t_compute, IO/BW), or their sum without
prefetch; the maximum is taken stage by stage, as far as the ring does not carry bytes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.formats.quants import BlockType
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.ring import RingPlan, sweep_seconds

CALL_S = 4e-6  # one kernel call from Python
CALLS_PER_LAYER = 18


@dataclass(frozen=True, slots=True)
class SweepEstimate:
    """Seconds of one sweep, and what they are made of."""

    compute_s: float
    io_s: float
    total_s: float

    @property
    def bound_s(self) -> float:
        """The physical limit: perfect overlap."""
        return max(self.compute_s, self.io_s)


def estimate_sweep(
    spec: ModelSpec,
    matrices: Sequence[Matrix],
    streamed_bytes: Sequence[int],
    hardware: Hardware,
    *,
    tokens: int,
    context_tokens: int,
    kv_type: BlockType,
    ring: RingPlan | None,
) -> SweepEstimate:
    """Estimate a sweep of `tokens` tokens whose attention reads `context_tokens` cached positions.

    `streamed_bytes` is by stage, as `stage_seconds`. Without a ring each request is read when it is
    needed.
    """
    stages = stage_seconds(
        spec,
        matrices,
        hardware,
        tokens=tokens,
        context_tokens=context_tokens,
        kv_type=kv_type,
    )
    compute, disk = sum(stages), hardware.disk
    io = sum(streamed_bytes) / disk.bytes_per_s
    if ring is None:
        return SweepEstimate(compute, io, compute + sum(streamed_bytes) / disk.at(1))
    return SweepEstimate(compute, io, sweep_seconds(stages, streamed_bytes, disk, ring))


def stage_seconds(
    spec: ModelSpec,
    matrices: Sequence[Matrix],
    hardware: Hardware,
    *,
    tokens: int,
    context_tokens: int,
    kv_type: BlockType,
) -> list[float]:
    """Computing of each layer, and of the head, which sees one token.

    Per matrix the larger of reading its weights once and multiplying them with every token (the
    kernels overlap the two). Attention likewise: the larger of reading the cache of `kv_type` once,
    and of its multiplications.
    """
    compute = [CALLS_PER_LAYER * CALL_S] * len(spec.layers) + [0.0]
    for matrix in matrices:
        tensor = matrix.tensor
        rates = hardware.kernels[tensor.block_type.name]
        many = 1 if matrix.layer < 0 else tokens
        ops = 2 * tensor.rows * tensor.columns * many
        compute[matrix.layer] += max(  # the head's -1 is the last
            tensor.size_bytes / rates.bytes_per_s, ops / rates.ops_per_s if many > 1 else 0
        )
    per_key = 2 * 2 * spec.heads * spec.head_dim  # a score and a sum, an addition to each product
    per_position = spec.kv_bytes_per_token(kv_type) / len(spec.layers)
    for index, layer in enumerate(spec.layers):
        seen = min(context_tokens, tokens + (layer.window_tokens or context_tokens))
        pairs = visible_keys(context_tokens - tokens, tokens, layer.window_tokens)
        compute[index] += max(
            seen * per_position / hardware.memory_bytes_per_s,
            pairs * per_key / hardware.attention_ops_per_s,
        )
    return compute


def visible_keys(start: int, tokens: int, window_tokens: int | None) -> int:
    """Keys that the tokens at positions `start` .. see, themselves included, all added up."""
    growing = tokens
    if window_tokens is not None:
        growing = min(tokens, max(0, window_tokens - start))  # those that a window does not limit
    full = growing * start + growing * (growing + 1) // 2
    return full + (tokens - growing) * (window_tokens or 0)
