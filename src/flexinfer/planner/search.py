"""The least of a function of two numbers of layers, by looking near what is known."""

from collections.abc import Callable, Iterable, Iterator

Counts = tuple[int, int]  # layers on the device in either phase


def least(value: Callable[[Counts], float], seeds: Iterable[Counts], layers: int) -> Counts | None:
    """Where `value` is least, from the best of `seeds` by steps of 1, 2, 4, … in either number or
    both, as long as one is better; None where all that was looked at is infinite.

    A descent: in time of that number of layers' logarithm, but the least only of what it meets.
    """
    known: dict[Counts, float] = {}

    def at(counts: Counts) -> float:
        if counts not in known:
            known[counts] = value(counts)
        return known[counts]

    best = min(dict.fromkeys(seeds), key=at)
    while True:
        nearest = min(_near(best, layers), key=at, default=best)
        if not at(nearest) < at(best):
            return best if at(best) < float("inf") else None
        best = nearest


def _near(counts: Counts, layers: int) -> Iterator[Counts]:
    step = 1
    while step <= layers:
        for prefill, decode in ((0, 1), (1, 0), (1, 1)):
            for sign in (step, -step):
                found = counts[0] + sign * prefill, counts[1] + sign * decode
                if all(0 <= number <= layers for number in found):
                    yield found
        step *= 2
