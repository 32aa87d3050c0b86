"""Plans asked the other way round: how little suffices, how much fits. `fits` is true from some
number on (or up to it); each is found by halving.
"""

from collections.abc import Callable

from flexinfer.errors import BudgetError
from flexinfer.units import MiB


def least(fits: Callable[[int], bool], low: int, high: int, step: int = 1) -> int | None:
    """The least number in low .. high, to within `step`, for which it holds; None if not at
    `high`.
    """
    if not fits(high):
        return None
    while high - low > step - 1 and high > low:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def most(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number in low .. high for which it holds; None if not at `low`."""
    if not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def possible(attempt: Callable[[int], object]) -> Callable[[int], bool]:
    """Whether an attempt is refused for its budget."""

    def fits(number: int) -> bool:
        try:
            attempt(number)
        except BudgetError:
            return False
        return True

    return fits


def budgets(low: int, high: int, count: int) -> list[int]:
    """`count` budgets from low to high at even distances, in whole MiB but for the ends."""
    inner = range(1, count - 1)
    between = (low + (high - low) * i // (count - 1) for i in inner)
    steps = (b // MiB * MiB for b in between)
    return list(dict.fromkeys((low, *(b for b in steps if low < b < high), high)))
