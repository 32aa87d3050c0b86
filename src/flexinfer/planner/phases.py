"""How long a phase takes with its layers on two processors, after paper A (FlexInfer, MLSys 2025):

- CPU only: T = sum of the layers' times on the host;
- offloading: T = sum over layers of max(device, link), as the next layer comes while this one
  computes; layers locked on the device need no link;
- a split: T = host layers + the hidden state's way over the link + device layers;

and in all three the disk works beside the whole sweep (arXiv 2503.03777): T = max(T, disk).
The cache of a layer that is computed on the device and kept on the host goes over the link, too:
read before, written back behind, both beside the computing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.models.spec import ModelSpec
from flexinfer.planner.estimator import (
    Cost,
    Work,
    cache_bytes,
    device_layer,
    device_once,
    host_layer,
    host_once,
    layer_cache_bytes,
)
from flexinfer.planner.hardware import Device, Hardware
from flexinfer.planner.strategies import Strategy, Tiers

FLOAT_BYTES = 4  # of the hidden state


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer in one sweep: on either processor, and what it would take over the link."""

    host: Cost
    device: Cost
    weight_bytes: int
    cache_read_bytes: float  # what came before this sweep
    cache_new_bytes: float

    def link_bytes(self, locked: bool, cached: bool) -> tuple[float, float]:
        """To the device and back, when the device computes it."""
        there = (0.0 if locked else self.weight_bytes) + (0.0 if cached else self.cache_read_bytes)
        return there, 0.0 if cached else self.cache_new_bytes

    def device_s(self, device: Device, locked: bool, cached: bool) -> float:
        """Computing and both directions of the link at the same time."""
        there, back = self.link_bytes(locked, cached)
        return max(
            self.device.total_s, device.to_device.seconds(there), device.to_host.seconds(back)
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase's sweeps, each layer by layer, and the bytes of its hidden state."""

    sweeps: tuple[tuple[LayerTimes, ...], ...]
    hidden_bytes: tuple[int, ...]

    @property
    def new_cache_bytes(self) -> list[float]:
        """What each layer adds to the cache."""
        return [sum(t.cache_new_bytes for t in layer) for layer in zip(*self.sweeps, strict=True)]


@dataclass(frozen=True, slots=True)
class PhaseEstimate:
    """Seconds of a phase, and how long each of its parts is busy meanwhile; bytes by link."""

    seconds: float
    host: Cost
    device: Cost
    link_s: float  # the link's own time, in the busier direction; beside computing
    disk_s: float
    to_device_bytes: float
    to_host_bytes: float
    disk_bytes: float

    @property
    def limit(self) -> str:
        """What is busy for longest."""
        if self.disk_s >= self.seconds > 0:
            return "disk"
        parts = {
            "host computing": self.host.compute_s,
            "host memory": self.host.memory_s,
            "device computing": self.device.compute_s,
            "device memory": self.device.memory_s,
            "link": self.link_s,
        }
        return max(parts, key=lambda name: parts[name])

    @property
    def link_share(self) -> float:
        """The part of the time in which the link is busy."""
        return self.link_s / self.seconds if self.seconds else 0.0


def phase(
    spec: ModelSpec,
    layers: dict[int, list[TensorInfo]],
    hardware: Hardware,
    works: Sequence[Work],
) -> Phase:
    """The tables of a phase of several sweeps. Layers that are alike are estimated once."""
    sweeps = []
    for work in works:
        known: dict[object, LayerTimes] = {}
        times = []
        for index in range(len(spec.layers)):
            tensors = layers[index]
            shapes = tuple((t.block_type.name, t.shape) for t in tensors)
            key = (shapes, spec.layers[index].window_tokens)
            if key not in known:
                known[key] = _layer(spec, index, tensors, hardware, work)
            times.append(known[key])
        times[-1] = _with_head(times[-1], spec, layers, hardware, work)
        sweeps.append(tuple(times))
    return Phase(tuple(sweeps), tuple(w.rows * spec.dim * FLOAT_BYTES for w in works))


def _layer(
    spec: ModelSpec, index: int, tensors: list[TensorInfo], hardware: Hardware, work: Work
) -> LayerTimes:
    device = hardware.device
    new = work.rows * layer_cache_bytes(spec, work.kv_type)
    read = cache_bytes(spec, work, spec.layers[index].window_tokens)
    return LayerTimes(
        host_layer(spec, index, tensors, hardware.host, work),
        device_layer(spec, index, tensors, device, work) if device else Cost(),
        sum(t.size_bytes for t in tensors),
        max(0.0, read - new),
        new,
    )


def _with_head(
    last: LayerTimes,
    spec: ModelSpec,
    layers: dict[int, list[TensorInfo]],
    hardware: Hardware,
    work: Work,
) -> LayerTimes:
    head = layers[-1]
    device = hardware.device
    return LayerTimes(
        last.host + host_once(spec, layers, hardware.host, work),
        last.device + (device_once(head, device, work) if device else Cost()),
        last.weight_bytes + sum(t.size_bytes for t in head),
        last.cache_read_bytes,
        last.cache_new_bytes,
    )


def estimate_phase(
    phase: Phase, strategy: Strategy, tiers: Tiers, streamed_share: float, hardware: Hardware
) -> PhaseEstimate:
    """`streamed_share` of what the host holds for this phase comes from disk, every sweep."""
    host = device_cost = Cost()
    seconds = link_s = disk_s = there_bytes = back_bytes = disk_bytes = 0.0
    for sweep, hidden_bytes in zip(phase.sweeps, phase.hidden_bytes, strict=True):
        sweep_s = streamed = 0.0
        for at, (times, processor) in enumerate(zip(sweep, strategy.processors, strict=True)):
            locked = at >= len(sweep) - tiers.device_locked
            cached = at >= len(sweep) - tiers.device_cache
            if processor == "host" or hardware.device is None:
                host += times.host
                sweep_s += times.host.total_s
                streamed += times.weight_bytes
                continue
            there, back = times.link_bytes(locked, cached)
            layer_s = times.device_s(hardware.device, locked, cached)
            to_device, to_host = hardware.device.to_device, hardware.device.to_host
            link_s += max(to_device.seconds(there), to_host.seconds(back))
            device_cost += times.device
            sweep_s += layer_s
            there_bytes, back_bytes = there_bytes + there, back_bytes + back
            streamed += 0.0 if locked else times.weight_bytes
        if hardware.device and 0 < strategy.device_layers < len(sweep):
            hidden_s = hardware.device.to_device.seconds(hidden_bytes)
            sweep_s, link_s = sweep_s + hidden_s, link_s + hidden_s
            there_bytes += hidden_bytes
        sweep_disk_s = streamed_share * streamed / hardware.disk_bytes_per_s
        disk_s, disk_bytes = disk_s + sweep_disk_s, disk_bytes + streamed_share * streamed
        seconds += max(sweep_s, sweep_disk_s)
    return PhaseEstimate(
        seconds, host, device_cost, link_s, disk_s, there_bytes, back_bytes, disk_bytes
    )


class PhaseSums:
    """The same seconds as `estimate_phase`, each candidate in a few additions: for choosing."""

    def __init__(self, phase: Phase, hardware: Hardware) -> None:
        self._hidden_bytes = phase.hidden_bytes
        self._hardware = hardware
        self._layers = len(phase.sweeps[0])
        self._host = [_sums(t.host.total_s for t in sweep) for sweep in phase.sweeps]
        self._weights = [_sums(t.weight_bytes for t in sweep) for sweep in phase.sweeps]
        self._device: list[_BySides] = []
        self._either: list[_BySides] = []  # on whichever is faster
        if device := hardware.device:
            for sweep in phase.sweeps:
                by_sides, either = {}, {}
                for sides in _SIDES:
                    seconds = [t.device_s(device, *sides) for t in sweep]
                    by_sides[sides] = _sums(seconds)
                    either[sides] = _sums(
                        min(s, t.host.total_s) for s, t in zip(seconds, sweep, strict=True)
                    )
                self._device.append(by_sides)
                self._either.append(either)

    def seconds(self, device_layers: int, tiers: Tiers, streamed_share: float) -> float:
        n, first, device = self._layers, self._layers - device_layers, self._hardware.device
        total = 0.0
        for sweep, hidden_bytes in enumerate(self._hidden_bytes):
            seconds = self._host[sweep][first]
            if device_layers and device:
                seconds += self._between(self._device[sweep], first, tiers)
                if first:
                    seconds += device.to_device.seconds(hidden_bytes)
            if streamed_share:
                streamed = self._weights[sweep][max(first, n - tiers.device_locked)]
                disk_bytes_per_s = self._hardware.disk_bytes_per_s
                seconds = max(seconds, streamed_share * streamed / disk_bytes_per_s)
            total += seconds
        return total

    def least(self, tiers: Tiers) -> float:
        """No split takes less: each layer on the faster processor, for nothing between them."""
        if not self._either:
            return sum(host[-1] for host in self._host)
        return sum(self._between(either, 0, tiers) for either in self._either)

    def _between(self, sums: "_BySides", first: int, tiers: Tiers) -> float:
        """Layers `first` .. the last, by what of them lies on the device."""
        n = self._layers
        locked, cached = max(first, n - tiers.device_locked), max(first, n - tiers.device_cache)
        low, high = min(locked, cached), max(locked, cached)
        middle = sums[locked < cached, cached < locked]
        neither, both = sums[False, False], sums[True, True]
        seconds = neither[low] - neither[first] + both[n] - both[high]
        return seconds + middle[high] - middle[low]


_SIDES = [(locked, cached) for locked in (False, True) for cached in (False, True)]
_BySides = dict[tuple[bool, bool], list[float]]


def _sums(values: Iterable[float]) -> list[float]:
    return [0.0, *accumulate(values)]
