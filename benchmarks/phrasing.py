"""Numbers and tables as the pages of figures write them."""

from collections.abc import Sequence


def ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def percents(ends: tuple[float, float]) -> str:
    low, high = (f"{100 * value:.1f}" for value in ends)
    return f"{low} %" if low == high else f"{low} to {high} %"


def span(values: Sequence[float], form: str) -> str:
    low, high = (format(value, form) for value in ends(values))
    return low if low == high else f"{low}–{high}"


def number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
