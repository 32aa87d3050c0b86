"""How long a sweep takes on a host or on a device, layer by layer.

Sources: the papers' estimators. Of a layer with C operations that touches D bytes, paper A
(FlexInfer, MLSys 2025) adds C / rate and D / bandwidth; our kernels overlap the two, so the larger
counts here. Of a sweep that streams S bytes, arXiv 2503.03777 has T = max(compute, S / bandwidth)
with prefetching, stage by stage as far as the ring does not carry bytes on, and their sum without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BlockType
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix
from flexinfer.planner.hardware import Device, Hardware, Host
from flexinfer.planner.placement import GROUP_ROWS, PlacedMatrix, Placement
from flexinfer.planner.ring import RingPlan, sweep_seconds

TILE_KEYS = 64  # keys that the attention kernel scores together
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Work:
    """What a sweep carries: of each sequence so many new tokens, the last of which sees
    `context_tokens` positions, itself included.
    """

    tokens: int
    context_tokens: int
    kv_type: BlockType
    sequences: int = 1

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, by what limits them: arithmetic or the memory's bandwidth."""

    compute_s: float = 0.0
    memory_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.memory_s

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.compute_s + other.compute_s, self.memory_s + other.memory_s)


def overlapped(compute_s: float, memory_s: float) -> Cost:
    """Arithmetic and memory at the same time: the longer counts.

    A product of one token that was measured is both; that is memory's.
    """
    if compute_s > (1 + ROUNDING) * memory_s:
        return Cost(compute_s, 0.0)
    return Cost(0.0, max(compute_s, memory_s))


@dataclass(frozen=True, slots=True)
class SweepEstimate:
    """One sweep on the host: its cost, the reading beside it, and how long both take."""

    cost: Cost
    disk_s: float
    total_s: float

    @property
    def bound_s(self) -> float:
        """The physical limit: perfect overlap."""
        return max(self.cost.total_s, self.disk_s)


def by_layer(matrices: Sequence[Matrix]) -> dict[int, list[TensorInfo]]:
    """The matrices of each layer, the head's (-1) last."""
    layers: dict[int, list[TensorInfo]] = {}
    for matrix in matrices:
        layers.setdefault(matrix.layer, []).append(matrix.tensor)
    return layers


def estimate_sweep(
    spec: ModelSpec,
    placement: Placement,
    hardware: Hardware,
    work: Work,
    *,
    ring: RingPlan | None,
    read_before_bytes: int = 0,
) -> SweepEstimate:
    """A sweep on the host. `read_before_bytes` of what streams are there when it begins; without a
    ring each request is read when it is needed.
    """
    stages = streamed_costs(spec, placement, hardware.host, work)
    cost = sum(stages, Cost())
    streamed, ahead = placement.stage_bytes(len(spec.layers)), read_before_bytes
    for stage, size in enumerate(streamed):
        streamed[stage] = max(0, size - ahead)
        ahead = max(0, ahead - size)
    disk, total = hardware.disk, sum(streamed)
    if ring is None:
        waits_s = len(placement.requests) * disk.wait_s
        seconds = cost.total_s + total / disk.at(1) + waits_s
    else:
        seconds = sweep_seconds([stage.total_s for stage in stages], streamed, disk, ring)
    disk_s = total / disk.bytes_per_s
    # Summed slot by slot, rounding could leave it a hair below the physical limit.
    return SweepEstimate(cost, disk_s, max(seconds, cost.total_s, disk_s))


def streamed_costs(spec: ModelSpec, placement: Placement, host: Host, work: Work) -> list[Cost]:
    """Of each layer, and of the head with what comes once a sweep. What streams is unpacked from
    the file's layout first, which takes longer.
    """
    matrices = [placed.matrix for placed in placement.matrices]
    costs = stage_costs(spec, by_layer(matrices), host, work)
    for placed in placement.matrices:  # the head's -1 is last
        costs[placed.matrix.layer] += Cost(unpacking_s(placed, host))
    return costs


def unpacking_s(placed: PlacedMatrix, host: Host) -> float:
    """What products with the matrix's streamed rows take beyond those with locked ones."""
    if not placed.segments:
        return 0.0
    tensor = placed.matrix.tensor
    rates = host.kernels[tensor.block_type.name]
    slower = max(0.0, 1 / rates.streamed_bytes_per_s - 1 / rates.bytes_per_s)
    streamed_rows = tensor.rows - placed.locked_rows
    return streamed_rows * (slower * tensor.row_bytes + rates.streamed_group_s / GROUP_ROWS)


def stage_costs(
    spec: ModelSpec, layers: Mapping[int, Sequence[TensorInfo]], host: Host, work: Work
) -> list[Cost]:
    """Of each layer, and of the head with what comes once a sweep, nothing streamed."""
    costs = [
        host_layer(spec, index, layers[index], host, work) for index in range(len(spec.layers))
    ]
    return [*costs, host_once(spec, layers, host, work)]


def host_once(
    spec: ModelSpec, layers: Mapping[int, Sequence[TensorInfo]], host: Host, work: Work
) -> Cost:
    """What comes once a sweep: embedding rows, the head for the last token of each sequence, a
    sample.
    """
    glue = host.glue
    sampling = work.sequences * spec.vocab_size / glue.sample_per_s
    cost = Cost(glue.sweep_s + work.rows * glue.row_s + sampling)
    for tensor in layers[-1]:
        cost += _host_product(tensor, host, work.sequences)
    return cost


def host_layer(
    spec: ModelSpec, index: int, tensors: Sequence[TensorInfo], host: Host, work: Work
) -> Cost:
    """One layer on the host: products, attention, and what lies between.

    Products: the larger of reading the weights once and of multiplying them with every token.
    Attention likewise, of reading the cache and of scores and sums.
    """
    glue = host.glue
    own_s = glue.layer_s if work.rows <= glue.replayed_tokens else glue.called_layer_s
    cost = Cost(own_s + _glue_s(spec, host, work))
    for tensor in tensors:
        cost += _host_product(tensor, host, work.rows)
    window = spec.layers[index].window_tokens
    rates = host.attention_rates(spec.head_dim, spec.heads // spec.kv_heads, work.kv_type.name)
    rate = rates.one_ops_per_s if work.tokens == 1 else rates.many_ops_per_s
    compute_s = work.sequences * attention_ops(spec, work, window) / rate
    return cost + overlapped(compute_s, cache_bytes(spec, work, window) / host.memory_bytes_per_s)


def device_layer(
    spec: ModelSpec, index: int, tensors: Sequence[TensorInfo], device: Device, work: Work
) -> Cost:
    """One layer on the device, its weights and its cache there. Asking for its operations goes on
    beside computing those before.
    """
    cost = device_attention(spec, spec.layers[index].window_tokens, device, work)
    for tensor in tensors:
        cost += _device_product(tensor, device, work.rows)
    return cost if cost.total_s > device.layer_s else Cost(device.layer_s)


def device_attention(
    spec: ModelSpec, window_tokens: int | None, device: Device, work: Work
) -> Cost:
    """Of one layer on the device, its cache there."""
    ops = work.sequences * attention_ops(spec, work, window_tokens)
    read_s = cache_bytes(spec, work, window_tokens) / device.memory_bytes_per_s
    return overlapped(ops / device.ops_per_s["F16"], read_s)


def device_once(tensors: Sequence[TensorInfo], device: Device, work: Work) -> Cost:
    """The head on the device."""
    cost = Cost()
    for tensor in tensors:
        cost += _device_product(tensor, device, work.sequences)
    return cost


def _host_product(tensor: TensorInfo, host: Host, tokens: int) -> Cost:
    rates = host.kernels[tensor.block_type.name]
    compute_s = rates.product_s(tensor.rows, tensor.columns, tokens)
    return overlapped(compute_s, tensor.size_bytes / rates.bytes_per_s)


def _device_product(tensor: TensorInfo, device: Device, tokens: int) -> Cost:
    return device_product(tensor.block_type, tensor.rows, tensor.columns, device, tokens)


def device_product(kind: BlockType, rows: int, columns: int, device: Device, tokens: int) -> Cost:
    """The larger of multiplying weights on the device with every token, and of reading them."""
    return overlapped(
        2 * rows * columns * tokens / device.ops_per_s[kind.name],
        rows * kind.row_bytes(columns) / device.memory_bytes_per_s,
    )


def _glue_s(spec: ModelSpec, host: Host, work: Work) -> float:
    """What lies between the products, for every token beyond the one that layer_s counts."""
    glue, more = host.glue, work.rows - 1
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    norms = (spec.pre_norms + spec.post_norms) * 2 * spec.dim
    norms += (queries + keys) * bool(spec.qk_norm)
    per_token = (
        norms / glue.norm_per_s
        + (2 * spec.dim + queries + spec.ffn_dim) / glue.quantise_per_s
        + (queries + keys) / glue.rope_per_s
        + 2 * keys / glue.append_per_s
        + spec.ffn_dim / glue.gate_per_s
    )
    return more * per_token


def attention_ops(spec: ModelSpec, work: Work, window_tokens: int | None) -> int:
    """Of one sequence in one layer: scores are of whole tiles of keys, sums of the visible ones;
    an addition to each multiplication.
    """
    start = work.context_tokens - work.tokens
    keys = visited_keys(start, work.tokens, window_tokens)
    keys += visible_keys(start, work.tokens, window_tokens)
    return 2 * spec.heads * spec.head_dim * keys


def cache_bytes(spec: ModelSpec, work: Work, window_tokens: int | None) -> float:
    """Of the cache that one layer reads for all sequences, each position once."""
    seen = min(work.context_tokens, work.tokens + (window_tokens or work.context_tokens))
    return work.sequences * seen * layer_cache_bytes(spec, work.kv_type)


def layer_cache_bytes(spec: ModelSpec, kind: BlockType) -> int:
    """Keys and values of one position in one layer, each head's stored as `kind`."""
    return 2 * spec.kv_heads * kind.row_bytes(spec.head_dim)


def visible_keys(start: int, tokens: int, window_tokens: int | None) -> int:
    """Keys that the tokens at positions `start` .. see, themselves included, all added up."""
    growing = tokens
    if window_tokens is not None:
        growing = min(tokens, max(0, window_tokens - start))  # those that a window does not limit
    full = growing * start + growing * (growing + 1) // 2
    return full + (tokens - growing) * (window_tokens or 0)


def visited_keys(start: int, tokens: int, window_tokens: int | None) -> int:
    """The same in whole tiles, counted by absolute position."""
    tiles = _tiles_before(start + tokens) - _tiles_before(start) + tokens
    if window_tokens is not None:
        first = start - window_tokens + 1  # the lowest key that the first token sees
        tiles -= _tiles_before(max(0, first + tokens)) - _tiles_before(max(0, first))
    return TILE_KEYS * tiles


def _tiles_before(position: int) -> int:
    """The sum of p // TILE_KEYS over all p below."""
    whole, rest = divmod(position, TILE_KEYS)
    return TILE_KEYS * (whole * (whole - 1) // 2) + whole * rest
