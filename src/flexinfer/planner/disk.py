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
    in a row of its kind: threads fell asleep. While both go on side by side, computing has
    `computing_share` of its own speed and reading `reading_share`; they add up to 1 at least.
    """

    bytes_per_s_at: Mapping[int, float]
    latency_s: float = 0.0  # of a short read
    busy: float = 1.0
    pause_s: float = 0.0
    wait_s: float = 0.0
    computing_share: float = 1.0
    reading_share: float = 1.0

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

    @property
    def computing_lost(self) -> float:
        """Seconds that computing takes longer for each second's worth of reading beside it: of
        that, reading takes 1 / reading_share, in which computing falls behind by the rest of its
        share.
        """
        return (1 - self.computing_share) / self.reading_share

    @property
    def reading_lost(self) -> float:
        """The same for reading, by the seconds of computing beside it."""
        return (1 - self.reading_share) / self.computing_share
