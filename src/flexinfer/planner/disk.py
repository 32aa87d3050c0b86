"""What reading at the model's place gives, by the number of reads in flight."""

from collections.abc import Mapping
from dataclasses import dataclass

NEAR_BEST = 0.95  # of the best bandwidth; more reads in flight would take ring slots for little
# A single read leaves the disk idle until its thread is back, which takes longer amid computing
# than where nothing else runs, as when the disk is measured.
LEAST_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Disk:
    """Measured. `bytes_per_s_at` is by the number of reads in flight, pauses included.

    Disks pause: a virtual one at its limit, any one for its own housekeeping. `busy` is the share
    of time that is no pause, `pause_s` the length of the pause that a lost moment lies in.

    A read that computing waits for, and computing after it, take `wait_s` longer together than each
    in a row of its kind: threads fell asleep. Side by side computing takes `computing_lost` seconds
    longer for every second's worth of reading, and reading `reading_lost` for every second of
    computing: 1 would be one after the other.
    """

    bytes_per_s_at: Mapping[int, float]
    latency_s: float = 0.0  # of a short read
    busy: float = 1.0
    pause_s: float = 0.0
    wait_s: float = 0.0
    computing_lost: float = 0.0
    reading_lost: float = 0.0

    @property
    def depth(self) -> int:
        """The least number of reads in flight whose bandwidth is near the best; one only where
        nothing else was tried.
        """
        several = {d: rate for d, rate in self.bytes_per_s_at.items() if d >= LEAST_DEPTH}
        tried = several or self.bytes_per_s_at
        enough = NEAR_BEST * max(tried.values())
        return min(depth for depth, rate in tried.items() if rate >= enough)

    @property
    def bytes_per_s(self) -> float:
        return self.at(self.depth)

    def at(self, depth: int) -> float:
        """Bytes/s with `depth` reads in flight: as with the most up to it that were tried."""
        tried = [d for d in self.bytes_per_s_at if d <= depth]
        return self.bytes_per_s_at[max(tried, default=min(self.bytes_per_s_at))]
