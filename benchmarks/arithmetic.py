"""How long a token should take with each candidate, from what was measured in the same run, and how
large each technique's gain should then be.

With c seconds of computing, s bytes streamed a sweep and a disk of b bytes/s (arXiv 2503.03777's
T_sync and T_async, and ours where nothing is balanced):

    a read when it is needed     c + s/b
    prefetched, balanced         max(c, s/b)
    prefetched, leading layers   k c + max((1 - k) c, (s - min(r, b k c)) / b)

for while the locked share k of the layers computes, only the ring of r bytes can be read ahead.
mmap reads when it needs to: c + m/b, m being what it was seen to read for a token. c is the serial
runs' time for a token less their time for reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from candidates import LAYER, MMAP, SERIAL_LAYER, SERIAL_ROWS, Run
from measuring import Budget, ModelRecord


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as long the slower takes as the faster, in each round.

    Expected twice: each with the bandwidth measured beside it, and both with one disk, which is the
    technique's own size on this machine. Nothing is expected where computing was not measured.
    """

    measured: tuple[float, ...]
    beside: tuple[float, ...]
    same: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.measured)

    @property
    def expected_beside(self) -> float | None:
        return _median(self.beside)

    @property
    def expected(self) -> float | None:
        return _median(self.same)


@dataclass(frozen=True, slots=True)
class Cell:
    """One model at one budget, all rounds; failed runs left out."""

    budget: Budget
    runs: tuple[Run, ...]

    def of(self, candidate: str) -> list[Run]:
        return [run for run in self.runs if run.candidate == candidate]

    def tpot_s(self, candidate: str) -> float | None:
        return _median([run.tpot_s or 0 for run in self.of(candidate)])

    @property
    def candidates(self) -> list[str]:
        return list(dict.fromkeys(run.candidate for run in self.runs))

    @property
    def rounds(self) -> int:
        return max(run.round for run in self.runs) + 1

    @property
    def disk_bytes_per_s(self) -> float:
        return median(run.disk_bytes_per_s for run in self.runs)

    @property
    def compute_s(self) -> float | None:
        """Computing of one token: of the serial runs, which do nothing else meanwhile."""
        serial = self.of(SERIAL_LAYER) + self.of(SERIAL_ROWS)
        return _median([(run.tpot_s or 0) - (run.stall_s or 0) for run in serial])

    @property
    def serial_bytes_per_s(self) -> float | None:
        """At which a reader with one request at a time gets its bytes."""
        serial = self.of(SERIAL_LAYER) + self.of(SERIAL_ROWS)
        return _median([(run.sweep_read_bytes or 0) / run.stall_s for run in serial if run.stall_s])

    def sweep_read_bytes(self, candidate: str) -> float | None:
        return _median([run.sweep_read_bytes or 0 for run in self.of(candidate)])

    @property
    def mmap_bytes_per_s(self) -> float | None:
        """At which page faults bring a token's bytes, computing taken off as ours takes it."""
        compute_s = self.compute_s
        if compute_s is None:
            return None
        rates = [
            (run.sweep_read_bytes or 0) / (run.tpot_s - compute_s)
            for run in self.of(MMAP)
            if run.tpot_s and run.tpot_s > compute_s
        ]
        return _median(rates)

    @property
    def bound_s(self) -> float | None:
        """What no prefetching can beat with the bytes that `rows` streams."""
        streamed, compute_s = self.sweep_read_bytes("rows"), self.compute_s
        if streamed is None or compute_s is None:
            return None
        return max(compute_s, streamed / self.disk_bytes_per_s)

    def expected_s(self, run: Run, disk_bytes_per_s: float) -> float:
        """The formulas above for a run's own bytes; only where computing was measured."""
        compute_s, streamed = self.compute_s, run.sweep_read_bytes or 0
        assert compute_s is not None
        read_s = streamed / disk_bytes_per_s
        if run.candidate in (MMAP, SERIAL_LAYER, SERIAL_ROWS):
            return compute_s + read_s
        if run.candidate == LAYER:
            locked = run.locked_bytes or 0
            early_s = compute_s * locked / (locked + streamed)
            ahead_s = min(self.budget.ring_bytes / disk_bytes_per_s, early_s, read_s)
            return early_s + max(compute_s - early_s, read_s - ahead_s)
        return max(compute_s, read_s)

    def expected_tpot_s(self, candidate: str) -> float | None:
        """Each run with the disk that was measured beside it: the median."""
        if self.compute_s is None:
            return None
        return _median([self.expected_s(run, run.disk_bytes_per_s) for run in self.of(candidate)])

    def gain(self, slower: str, faster: str) -> Gain | None:
        """Round by round; None where no round has both."""
        fast = {run.round: run for run in self.of(faster)}
        pairs = [(run, fast[run.round]) for run in self.of(slower) if run.round in fast]
        if not pairs:
            return None
        measured = tuple((a.tpot_s or 0) / (b.tpot_s or 1) for a, b in pairs)
        if self.compute_s is None:
            return Gain(measured, (), ())
        disk = self.disk_bytes_per_s
        beside = tuple(
            self.expected_s(a, a.disk_bytes_per_s) / self.expected_s(b, b.disk_bytes_per_s)
            for a, b in pairs
        )
        same = tuple(self.expected_s(a, disk) / self.expected_s(b, disk) for a, b in pairs)
        return Gain(measured, beside, same)


def cells(model: ModelRecord) -> list[Cell]:
    """One for each budget at which something was measured, the smallest first."""
    found = []
    for budget in sorted(model.budgets, key=lambda budget: budget.limit_bytes):
        runs = tuple(run for run in model.runs if run.percent == budget.percent and run.done)
        if runs:
            found.append(Cell(budget, runs))
    return found


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
