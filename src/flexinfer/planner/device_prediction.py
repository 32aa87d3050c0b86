"""What a plan with a device promises: its layers by paper A's times (`planner.estimator`), the link
as the disk's twin.

Of a sweep each layer is a stage: it computes on its processor, and takes over the link what streams
to it. Transfers go on ahead as far as the device's ring carries them, so a sweep is that of
`planner.ring` over the link; without prefetching computing and transfers add up. What crosses when
the processor changes, and the logits on their way back, hold everything up. The disk works beside
the whole sweep.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix
from flexinfer.planner.cutting import most_held, request_bytes
from flexinfer.planner.device import LINK_THREADS, DevicePlan, PhaseName
from flexinfer.planner.disk import Disk
from flexinfer.planner.estimator import Cost, SweepEstimate, Work, by_layer, unpacking_s
from flexinfer.planner.hardware import Device, Hardware
from flexinfer.planner.phases import FLOAT_BYTES, LayerTimes, phase
from flexinfer.planner.placement import PlacedMatrix
from flexinfer.planner.planner import Plan, Prediction
from flexinfer.planner.ring import RingPlan, sweep_seconds
from flexinfer.planner.sizes import KV_TYPES, PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class SweepTimes:
    """Seconds of one sweep, and of the disk beside it."""

    seconds: float
    disk_s: float


def predict_device(
    spec: ModelSpec, matrices: tuple[Matrix, ...], plan: Plan, hardware: Hardware
) -> Prediction:
    """TTFT and TPOT of the plan's workload; `hardware` has a device."""
    device, rates = plan.device, hardware.device
    assert device is not None and rates is not None
    # Calls of a host's layer between those of a device's are not replayed.
    glue = replace(hardware.host.glue, replayed_tokens=0)
    hardware = replace(hardware, host=replace(hardware.host, glue=glue))
    sweeps = _Sweeps(spec, matrices, plan, device, hardware, rates)
    load = plan.workload
    kind = KV_TYPES[plan.kv_type]
    prompt = list(_prompt(plan))
    ttft_s = sum(
        sweeps.times("prefill", work, first=not at).seconds for at, work in enumerate(prompt)
    )
    decode = sweeps.times("decode", Work(1, load.prompt_tokens + load.new_tokens // 2, kind))
    tpot_s = decode.seconds
    if load.new_tokens > 1:
        tpot_s += sweeps.hand_over_s(load.prompt_tokens) / (load.new_tokens - 1)
    layers = by_layer(matrices)
    locked_bytes = plan.placement.locked_bytes + sum(
        t.size_bytes for i in device.locked_layers for t in layers[i]
    )
    return Prediction(
        ttft_s,
        tpot_s,
        decode.seconds,
        locked_bytes / hardware.disk_bytes_per_s,
        SweepEstimate(Cost(decode.seconds, 0.0), decode.disk_s, decode.seconds),
    )


@dataclass(frozen=True, slots=True)
class _Sweeps:
    spec: ModelSpec
    matrices: tuple[Matrix, ...]
    plan: Plan
    part: DevicePlan
    hardware: Hardware
    device: Device

    def times(self, name: PhaseName, work: Work, *, first: bool = False) -> SweepTimes:
        """Of one sweep. When the `first` one begins nothing is on the device yet: a prompt comes as
        soon as the model is there.
        """
        layers = by_layer(self.matrices)
        table = phase(self.spec, layers, self.hardware, [work]).sweeps[0]
        processors = self.part.strategy(name).processors
        last = len(table) - 1
        link, transfers = self.device.to_device, 0
        stages, streamed, from_disk = [], [], 0.0
        for at, (times, processor) in enumerate(zip(table, processors, strict=True)):
            locked = at in self.part.locked_layers
            if processor == "host":
                stages.append(times.host.total_s + self._unpacking_s(at))
                streamed.append(0.0)
                from_disk += times.weight_bytes
                continue
            slower_s = 0.0 if locked else self._unmixing_s(at)
            stages.append(self._device_s(at, times, work) + slower_s)
            tensors = [*layers[at], *(layers[-1] if at == last else ())]
            count = 0 if locked else self._transfers(tensors)
            transfers += count
            size = 0 if locked else times.weight_bytes
            streamed.append(size + count * link.latency_s * link.bytes_per_s)  # as bytes, too
            from_disk += 0.0 if locked else times.weight_bytes
        seconds = self._over_link(stages, streamed, transfers, first=first)
        seconds += self._crossing_s(processors, work)
        placement = self.plan.placement
        held = placement.locked_bytes + placement.streamed_bytes
        share = placement.streamed_bytes / held if held else 0.0
        disk_s = share * from_disk / self.hardware.disk_bytes_per_s
        if not self.plan.prefetch:
            return SweepTimes(seconds + disk_s, disk_s)
        return SweepTimes(max(seconds, disk_s), disk_s)

    def hand_over_s(self, prompt_tokens: int) -> float:
        """The prompt's cache of layers that the host computed and that decode on the device."""
        both = zip(self.part.prefill.processors, self.part.decode.processors, strict=True)
        moved = sum(
            before == "host" and after == "device" and at in self.part.cached_layers
            for at, (before, after) in enumerate(both)
        )
        return moved * self._pages_s(prompt_tokens)

    def _device_s(self, at: int, times: LayerTimes, work: Work) -> float:
        """Computing, with a cache that the host keeps brought before; what is new of it goes back
        beside the computing.
        """
        if at in self.part.cached_layers:
            return times.device.total_s
        window = self.spec.layers[at].window_tokens
        before = work.context_tokens - work.tokens
        there_s = self._pages_s(before if window is None else min(before, window))
        back_s = self.device.to_host.seconds(times.cache_new_bytes, -(-work.tokens // PAGE_TOKENS))
        if self.plan.prefetch:
            return there_s + max(times.device.total_s, back_s)
        return there_s + times.device.total_s + back_s

    def _unmixing_s(self, at: int) -> float:
        """What the layer's weights take besides, as far as the host has them interleaved."""
        streamed_bytes_per_s = self.device.streamed_bytes_per_s
        if streamed_bytes_per_s is None:
            return 0.0
        mixed_bytes = sum(
            placed.locked_rows * placed.matrix.tensor.row_bytes for placed in self._placed(at)
        )
        return mixed_bytes * max(0.0, 1 / streamed_bytes_per_s - 1 / self.device.memory_bytes_per_s)

    def _unpacking_s(self, at: int) -> float:
        """What the layer's rows that stream from the disk take the host besides."""
        return sum(unpacking_s(placed, self.hardware.host) for placed in self._placed(at))

    def _placed(self, at: int) -> Iterator[PlacedMatrix]:
        """The layer's matrices, the last's with the head."""
        last = at == len(self.spec.layers) - 1
        for placed in self.plan.placement.matrices:
            if placed.matrix.layer == at or (last and placed.matrix.layer < 0):
                yield placed

    def _pages_s(self, tokens: int) -> float:
        """One layer's pages of the host's cache that hold these, one transfer each."""
        pages = -(-tokens // PAGE_TOKENS)
        kind = KV_TYPES[self.plan.kv_type]
        row_bytes = 2 * self.spec.kv_heads * kind.row_bytes(self.spec.head_dim)
        return self.device.to_device.seconds(pages * PAGE_TOKENS * row_bytes, pages)

    def _transfers(self, tensors: Sequence[TensorInfo]) -> int:
        """That bring these matrices: each is one, or several where it is larger than a slot."""
        return sum(-(-tensor.size_bytes // self.part.slot_bytes) for tensor in tensors)

    def _over_link(
        self,
        stages: Sequence[float],
        streamed: Sequence[float],
        transfers: int,
        *,
        first: bool,
    ) -> float:
        """A slot carries a transfer, however little of it that fills."""
        link = self.device.to_device
        if not self.plan.prefetch or not any(streamed):
            return sum(stages) + sum(streamed) / link.bytes_per_s
        ring = RingPlan(
            self.part.ring_slots,
            round(sum(streamed) / transfers),
            most_held(self.matrices, request_bytes(self.matrices)),
            LINK_THREADS,
        )
        return sweep_seconds(stages, streamed, Disk({1: link.bytes_per_s}), ring, first=first)

    def _crossing_s(self, processors: Sequence[str], work: Work) -> float:
        """The hidden state or the embedding, and the rope's angles, to the device; the logits
        back, and what the host does once a sweep. Where it goes back and forth, each time.
        """
        if "device" not in processors:
            return 0.0
        hidden_bytes = FLOAT_BYTES * work.rows * self.spec.dim
        angles = {layer.rope for layer in self.spec.layers if layer.rope}
        seconds = sum(
            self.device.to_device.seconds(FLOAT_BYTES * work.rows * rope.dim) for rope in angles
        )
        sides = ["host", *processors]
        for before, after in zip(sides, processors, strict=False):
            if before != after:
                link = self.device.to_device if after == "device" else self.device.to_host
                seconds += link.seconds(hidden_bytes)
        if processors[-1] == "device":
            seconds += self.device.to_host.seconds(FLOAT_BYTES * self.spec.vocab_size)
            glue = self.hardware.host.glue
            seconds += glue.sweep_s + work.rows * glue.row_s
            seconds += self.spec.vocab_size / glue.sample_per_s
        return seconds


def _prompt(plan: Plan) -> Iterator[Work]:
    for start in range(0, plan.workload.prompt_tokens, plan.sweep_tokens):
        tokens = min(plan.sweep_tokens, plan.workload.prompt_tokens - start)
        yield Work(tokens, start + tokens, KV_TYPES[plan.kv_type])
