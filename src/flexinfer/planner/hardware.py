"""What a machine gives, as the estimator needs it: a host, its disk, perhaps a device, and the
links between them. Rates are what is reached, not what a data sheet says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flexinfer.planner.disk import Disk

Source = Literal["probe", "profile", "preset", "file"]


@dataclass(frozen=True, slots=True)
class Link:
    """A way for bytes between host and device. Every transfer takes `latency_s` besides."""

    bytes_per_s: float
    latency_s: float = 0.0

    def seconds(self, size_bytes: float, transfers: int = 1) -> float:
        """One transfer after the other."""
        return size_bytes / self.bytes_per_s + transfers * self.latency_s if size_bytes else 0.0


@dataclass(frozen=True, slots=True)
class KernelRates:
    """Products with weights of one block type on all threads.

    `bytes_per_s` is of the weights of one token's product, from memory; streamed weights are used
    in the file's layout, which is slower, and every 16 rows of it take `streamed_group_s` besides.
    `ops_per_s` (two per multiply-add) is given at numbers of tokens, ascending. Every result of a
    token after the first takes `result_s` besides.
    """

    bytes_per_s: float
    streamed_bytes_per_s: float
    ops_per_s: tuple[tuple[int, float], ...]
    streamed_group_s: float = 0.0
    result_s: float = 0.0

    def at_most(self, bytes_per_s: float) -> "KernelRates":
        """From a memory that gives no more: what was measured beyond it came out of a cache."""
        return replace(
            self,
            bytes_per_s=min(self.bytes_per_s, bytes_per_s),
            streamed_bytes_per_s=min(self.streamed_bytes_per_s, bytes_per_s),
        )

    def product_s(self, rows: int, columns: int, tokens: int) -> float:
        """Multiplying a matrix with `tokens` tokens: in a straight line between the numbers
        measured, in proportion beyond them.
        """
        return self._arithmetic_s(rows * columns, tokens) + rows * (tokens - 1) * self.result_s

    def _arithmetic_s(self, values: int, tokens: int) -> float:
        count, rate = self.ops_per_s[0]
        if tokens <= count:
            return 2 * values * tokens / rate
        seconds = 2 * values * count / rate
        for next_count, next_rate in self.ops_per_s[1:]:
            next_s = 2 * values * next_count / next_rate
            if tokens <= next_count:
                return seconds + (next_s - seconds) * (tokens - count) / (next_count - count)
            count, rate, seconds = next_count, next_rate, next_s
        return 2 * values * tokens / rate


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Operations/s of attention for heads of one size, `group` of them sharing keys and values:
    for one token and for a prompt. The cache is of a block type.
    """

    head_dim: int
    group: int
    one_ops_per_s: float
    many_ops_per_s: float
    kv_type: str = "F16"


@dataclass(frozen=True, slots=True)
class Glue:
    """What a sweep takes besides products and attention.

    A layer's and a sweep's own time (calls, norms of one token; sweeps of more than
    `replayed_tokens` tokens make their calls from Python, which takes longer), seconds of an
    embedding row, values/s of sampling, and for every further token those of norms, quantising,
    rope, writing to the cache, and gated activations.
    """

    layer_s: float = 0.0
    called_layer_s: float = 0.0
    replayed_tokens: int = 0
    sweep_s: float = 0.0
    row_s: float = 0.0
    sample_per_s: float = float("inf")
    norm_per_s: float = float("inf")
    quantise_per_s: float = float("inf")
    rope_per_s: float = float("inf")
    append_per_s: float = float("inf")
    gate_per_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Host:
    """The processor and its memory. `kernels` by block type name, `attention` by shape of heads."""

    memory_bytes_per_s: float
    kernels: Mapping[str, KernelRates]
    attention: tuple[AttentionRates, ...]
    glue: Glue = Glue()
    memory_bytes: int | None = None  # of a machine that is not this one

    def attention_rates(self, head_dim: int, group: int, kv_type: str) -> AttentionRates:
        """Those of the nearest that is known: the cache's type first, then the size of a head."""

        def distance(known: AttentionRates) -> tuple[bool, int, int]:
            sizes = abs(known.head_dim - head_dim), abs(known.group - group)
            return known.kv_type != kv_type, *sizes

        return min(self.attention, key=distance)


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator with memory of its own. `ops_per_s` by block type name.

    `layer_s` is what asking for a layer's operations takes, beside computing those before.
    `streamed_bytes_per_s` is that of weights in the host's interleaved layout, where it is known.
    """

    memory_bytes: int
    memory_bytes_per_s: float
    ops_per_s: Mapping[str, float]
    to_device: Link
    to_host: Link
    layer_s: float = 0.0
    streamed_bytes_per_s: float | None = None

    def scaled(self, factor: float) -> "Device":
        """With `factor` of every rate; memory and latencies as they are."""
        return replace(
            self,
            memory_bytes_per_s=factor * self.memory_bytes_per_s,
            ops_per_s={kind: factor * rate for kind, rate in self.ops_per_s.items()},
            to_device=replace(self.to_device, bytes_per_s=factor * self.to_device.bytes_per_s),
            to_host=replace(self.to_host, bytes_per_s=factor * self.to_host.bytes_per_s),
        )


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine. `source` says how its rates were found."""

    name: str
    source: Source
    disk: Disk
    host: Host
    device: Device | None = None

    @property
    def disk_bytes_per_s(self) -> float:
        return self.disk.bytes_per_s

    @property
    def memory_bytes_per_s(self) -> float:
        return self.host.memory_bytes_per_s
