"""Figures as people read them."""

from collections.abc import Sequence

from flexinfer.units import format_bytes

BAR_CELLS = 30


def duration(seconds: float) -> str:
    """`0.042 s`, `4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if seconds < 600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def tokens_rate(per_s: float) -> str:
    """Tokens per second, three digits; seconds a token where it is slower than one."""
    if 0 < per_s < 1:
        return f"{duration(1 / per_s)} a token"
    return f"{per_s:.3g} tokens/s" if per_s < 1000 else f"{per_s:.0f} tokens/s"


def bytes_rate(per_s: float) -> str:
    return f"{per_s / 1e9:.3g} GB/s"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def amount_of_bytes(done: int, total: int) -> str:
    return f"{format_bytes(done)} of {format_bytes(total)}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table; the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def bar(part: float, whole: float) -> str:
    """A bar of eighths of a cell."""
    eighths = round(8 * BAR_CELLS * part / whole)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
