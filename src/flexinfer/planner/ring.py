"""How many slots the ring has, and how long a sweep takes that streams through it.

Some of the slots are held by computing (one; a few in small models, whose reads bring several
matrices), and as many as there are I/O threads are being filled. The rest is the *carry*: what is
read ahead while reading is the faster, for when computing is. Without it computing and reading
overlap already, and every slot more takes memory that would have locked weights, which then stream
each sweep. A slot pays for that

- where a sweep streams unevenly: a stage (a layer, or the head) takes the longer of its computing
  and of reading what it still lacks, and what reading gains meanwhile is carried on, as much as the
  carry holds (Lindley's recursion, of a bounded store). A slot gains its bytes once in each swing
  from reading ahead to falling behind. `rows` hardly swings. `layer` swings once a sweep, so that a
  slot gains just what it would have locked; a policy that alternates layers swings often.
- where the disk pauses and computing needs about what reading gives, or less: then computing lives
  on the carry meanwhile. Reading must have got ahead before, so nothing is gained where it never
  does.

Where reading and computing share processors and memory, a sweep takes what both cost each other
besides, as measured.

All of it is arithmetic on measured rates. The ring is the least one whose sweep is near the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexinfer.errors import OptionError
from flexinfer.planner.disk import Disk

MIN_SLOTS = 4  # one in use, two being read, one ready; locking goes through the ring, too
MAX_SLOTS = 32  # 128 MiB: a tenth of a second of a fast disk, longer than pauses that were seen
MAX_WINDOW_SLOTS = 1024  # that can be asked for
MAX_IO_THREADS = 16
NEAR_BEST = 1.01
LEAST_PAUSE_S = 1e-6  # shorter ones are in the bandwidth, and far shorter ones beyond arithmetic


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Equal slots; computing holds up to `held` of them at once, `depth` reads would pay."""

    slots: int
    slot_bytes: int
    held: int
    depth: int

    def with_slots(self, slots: int) -> "RingPlan":
        return replace(self, slots=slots)

    @property
    def size_bytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def threads(self) -> int:
        """That read; more than slots would only wait."""
        return min(self.depth, self.slots)

    @property
    def in_flight(self) -> int:
        """Reads while computing holds its slots: 0 where those are all."""
        return min(self.depth, self.slots - self.held)

    @property
    def carry_bytes(self) -> int:
        return (self.slots - self.held - self.in_flight) * self.slot_bytes


def check_reading(prefetch: bool, window: int | None, io_threads: int | None) -> None:
    """Raises OptionError for a `--prefetch-window` and `--io-threads` out of bounds, or in vain."""
    for name, value, most in (
        ("--prefetch-window", window, MAX_WINDOW_SLOTS),
        ("--io-threads", io_threads, MAX_IO_THREADS),
    ):
        if value is None:
            continue
        if not 1 <= value <= most:
            raise OptionError(f"{name} is {value}; it must be 1 to {most}", "leave it out")
        if not prefetch:
            raise OptionError(
                f"{name} cannot take effect with --no-prefetch, which reads one request at a time",
                "leave out one of them",
            )
    if window is not None and io_threads is not None and io_threads > window:
        raise OptionError(
            f"--io-threads is {io_threads}, but a --prefetch-window of {window} has no room for "
            f"more than {window} reads",
            "give fewer threads or a larger window",
        )


def sweep_seconds(
    compute_s: Sequence[float],
    streamed_bytes: Sequence[float],
    disk: Disk,
    ring: RingPlan,
    *,
    first: bool = False,
) -> float:
    """A sweep among others like it, or the `first` one, from what each of its stages computes and
    streams.
    """
    total_s, total_bytes = sum(compute_s), sum(streamed_bytes)
    if not ring.in_flight:
        return total_s + total_bytes / disk.at(1)
    rate, carry = disk.at(ring.in_flight), float(ring.carry_bytes)
    # A first sweep finds an empty ring. What it stalls for at its worst point, those after it have
    # ahead by then, or else stall for again: from the second on all take as long.
    ahead = 0.0
    for _ in range(1 if first else 2):
        seconds = 0.0
        for stage_s, needed in zip(compute_s, streamed_bytes, strict=True):
            took = max(stage_s, (needed - ahead) / rate)
            ahead = min(carry, max(0.0, ahead + rate * took - needed))
            seconds += took
    read_s = total_bytes / rate
    seconds += min(disk.lost_s(total_s, read_s), max(0.0, total_s + read_s - seconds))
    return seconds + _lost_in_pauses(total_s, total_bytes, disk, rate, carry)


def _lost_in_pauses(
    compute_s: float, streamed_bytes: float, disk: Disk, bytes_per_s: float, carry_bytes: float
) -> float:
    """Seconds of a sweep beyond what the mean bandwidth says.

    Computing takes bytes at its own rate: between pauses from the disk, in a pause from what is
    ahead. That is at most the carry, what the pause asks for, and what was gained since the last.
    """
    if not (streamed_bytes and disk.pause_s > LEAST_PAUSE_S and disk.busy < 1):
        return 0.0
    taken_per_s, read_per_s = streamed_bytes / compute_s, bytes_per_s / disk.busy
    between_s = disk.pause_s * disk.busy / (1 - disk.busy)
    gained = max(0.0, read_per_s - taken_per_s) * between_s
    ahead = min(carry_bytes, taken_per_s * disk.pause_s, gained)
    flow = (min(taken_per_s, read_per_s) * between_s + ahead) / (between_s + disk.pause_s)
    return streamed_bytes / flow - streamed_bytes / min(taken_per_s, bytes_per_s)


def choose_slots(
    compute_s: Sequence[float],
    streamed_bytes: Sequence[int],
    disk: Disk,
    least: RingPlan,
    most_slots: int,
) -> int:
    """The fewest slots, of those from `least` to the most, whose sweep is near the fastest.

    `streamed_bytes` is what each stage streams beside the least ring; a larger ring's memory is
    taken from what is locked, everywhere alike.
    """
    total = sum(streamed_bytes)

    def seconds(slots: int) -> float:
        ring = least.with_slots(slots)
        share = 1 + (ring.size_bytes - least.size_bytes) / total
        return sweep_seconds(compute_s, [share * n for n in streamed_bytes], disk, ring)

    times = {slots: seconds(slots) for slots in range(least.slots, most_slots + 1)}
    enough = NEAR_BEST * min(times.values())
    return min(slots for slots, time in times.items() if time <= enough)
