"""What a machine gives, as the estimator needs it."""

from collections.abc import Mapping
from dataclasses import dataclass

from flexinfer.planner.disk import Disk


@dataclass(frozen=True, slots=True)
class KernelRates:
    """One block type on all threads: weight bytes per second for one token, operations per
    second for many.
    """

    bytes_per_s: float
    ops_per_s: float  # two per multiply-add


@dataclass(frozen=True, slots=True)
class Hardware:
    """Measured rates; `kernels` by block type name."""

    disk: Disk
    memory_bytes_per_s: float
    attention_ops_per_s: float  # over cached keys and values that are in the processor's caches
    kernels: Mapping[str, KernelRates]

    @property
    def disk_bytes_per_s(self) -> float:
        return self.disk.bytes_per_s
