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
    in a row of its kind: threads fell asleep. `contention` is what both cost each other side by
    side: at so many seconds of computing for every second's worth of reading, ascending, so many
    seconds beyond the longer of the two.
    """

    bytes_per_s_at: Mapping[int, float]
    latency_s: float = 0.0  # of a short read
    busy: float = 1.0
    pause_s: float = 0.0
    wait_s: float = 0.0
    contention: tuple[tuple[float, float], ...] = ()

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

    def lost_s(self, computing_s: float, reading_s: float) -> float:
        """Seconds beyond the longer of the two: in a straight line between the points measured,
        from none without computing; at most the shorter, as one may go after the other.
        """
        at = lost = 0.0
        for next_at, next_lost in self.contention:
            if reading_s and computing_s <= next_at * reading_s:
                lost += (next_lost - lost) * (computing_s / reading_s - at) / (next_at - at)
                break
            at, lost = next_at, next_lost
        return min(lost * reading_s, computing_s, reading_s)
