"""Strategies: which processor computes each layer, per phase. Plain data.

Paper A (FlexInfer, MLSys 2025) has three per phase: all on the host (`cpu`), all on the device with
weights streamed to it (`gpu-offload`), and the first layers here, the last m there (`split(m)`).
They are one family: cpu is split(0), gpu-offload is split(all). The paper's baselines are fixed
points in it.
"""

from dataclasses import dataclass
from typing import Literal

Processor = Literal["host", "device"]
Objective = Literal["latency", "ttft", "tpot", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "ttft", "tpot", "throughput")


@dataclass(frozen=True, slots=True)
class Strategy:
    """The processor of each layer in one phase; the head goes with the last layer."""

    processors: tuple[Processor, ...]

    @property
    def device_layers(self) -> int:
        return self.processors.count("device")

    @property
    def name(self) -> str:
        if not self.device_layers:
            return "cpu"
        whole = self.device_layers == len(self.processors)
        return "gpu-offload" if whole else f"split({self.device_layers})"


def split(layers: int, device_layers: int) -> Strategy:
    """The last `device_layers` layers on the device."""
    host: list[Processor] = ["host"] * (layers - device_layers)
    device: list[Processor] = ["device"] * device_layers
    return Strategy((*host, *device))


@dataclass(frozen=True, slots=True)
class Tiers:
    """What lies where for the whole run: of the last layers, how many have their weights locked in
    device memory, and how many their cache.
    """

    device_locked: int = 0
    device_cache: int = 0


@dataclass(frozen=True, slots=True)
class Placing:
    """One candidate of the choice: layers on the device in either phase, and where things lie."""

    layers: int
    prefill_layers: int  # the last ones, on the device
    decode_layers: int
    tiers: Tiers

    @property
    def prefill(self) -> Strategy:
        return split(self.layers, self.prefill_layers)

    @property
    def decode(self) -> Strategy:
        return split(self.layers, self.decode_layers)

    @property
    def device_layers(self) -> int:
        """In whichever phase has more."""
        return max(self.prefill_layers, self.decode_layers)

    @property
    def host_layers(self) -> int:
        """Leading layers whose weights the host needs in some phase: all but those that are locked
        on the device and always computed there.
        """
        least = min(self.tiers.device_locked, self.prefill_layers, self.decode_layers)
        return self.layers - least
