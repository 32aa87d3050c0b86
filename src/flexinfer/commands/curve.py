"""The budget curve: how fast a model is at every budget from the least to all of it; and the
budget that a speed takes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flexinfer.commands.figures import aligned, duration, share, tokens_rate
from flexinfer.errors import BudgetError, OptionError
from flexinfer.planner.questions import budgets, least, possible
from flexinfer.units import MiB, format_bytes

POINTS = 12


@dataclass(frozen=True, slots=True)
class Point:
    """What one budget gives."""

    budget_bytes: int
    locked_bytes: int
    streamed_bytes: int  # per sweep, from disk
    ttft_s: float
    tpot_s: float
    bound_tpot_s: float


Plan = Callable[[int], Point]  # of a budget; raises BudgetError


def curve(plan: Plan, available_bytes: int) -> list[Point]:
    """From the least budget to the one in which nothing streams, or to what there is.

    Raises BudgetError where not even that suffices.
    """
    low = least(possible(plan), 0, available_bytes, MiB)
    if low is None:
        plan(available_bytes)  # says what is missing
        raise BudgetError("no budget up to what there is suffices", "free some memory")
    whole = least(lambda b: not plan(b).streamed_bytes, low, available_bytes, MiB)
    return [plan(budget) for budget in budgets(low, whole or available_bytes, POINTS)]


def budget_for(plan: Plan, tokens_per_s: float, available_bytes: int) -> int | None:
    """The least budget, to within a MiB, at which decoding is so fast; None if none is."""
    if not tokens_per_s > 0:
        raise OptionError(f"--target-tokens-per-s is {tokens_per_s}; it must be above 0")
    enough = possible(plan)

    def fast(budget: int) -> bool:
        return enough(budget) and plan(budget).tpot_s <= 1 / tokens_per_s

    return least(fast, 0, available_bytes, MiB)


def target_line(tokens_per_s: float, needed: int | None) -> str:
    wanted = f"target     {tokens_per_s:g} tokens/s"
    if needed is None:
        return f"{wanted} are not reached with all the memory there is"
    return f"{wanted} need --ram {format_bytes(needed)}"


def show(points: Sequence[Point]) -> Iterator[str]:
    head = ("budget", "locked", "", "streamed", "first token", "decode", "bound")
    rows = [
        (
            format_bytes(p.budget_bytes),
            format_bytes(p.locked_bytes),
            share(p.locked_bytes, p.locked_bytes + p.streamed_bytes),
            format_bytes(p.streamed_bytes),
            duration(p.ttft_s),
            tokens_rate(1 / p.tpot_s),
            tokens_rate(1 / p.bound_tpot_s),
        )
        for p in points
    ]
    return iter(aligned([head, *rows], left=0))


def as_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]
