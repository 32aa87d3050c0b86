"""Drawings of plans, as SVG or PNG. matplotlib is an extra, and imported only for them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.commands.curve import Point
from flexinfer.errors import OptionError

FORMS = (".svg", ".png")
Measured = Sequence[tuple[int, float]]  # budget in bytes, tokens/s


def check_target(target: Path) -> None:
    """Raises OptionError for a file that cannot be drawn, before anything is planned."""
    if target.suffix.lower() not in FORMS:
        raise OptionError(
            f"--plot {target}: unknown form {target.suffix!r}", f"known: {', '.join(FORMS)}"
        )
    if not target.absolute().parent.is_dir():
        raise OptionError(f"--plot {target}: the folder is not there", "make it first")
    _pyplot()


def plot_curve(points: Sequence[Point], measured: Measured, title: str, target: Path) -> None:
    """Tokens/s over the budget, with the bound and what was measured."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    gib = [p.budget_bytes / 2**30 for p in points]
    axes.plot(gib, [1 / p.tpot_s for p in points], "o-", label="predicted")
    axes.plot(gib, [1 / p.bound_tpot_s for p in points], "k:", label="bound")
    if measured:
        axes.plot([b / 2**30 for b, _ in measured], [r for _, r in measured], "s", label="measured")
    axes.set(xlabel="memory budget, GiB", ylabel="decode, tokens/s", title=title, yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    _save(figure, target)


def plot_memory(tiers: Mapping[str, Mapping[str, int]], title: str, target: Path) -> None:
    """A bar per tier, its parts by category."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.7 * len(tiers)), layout="constrained")
    categories = list(dict.fromkeys(c for parts in tiers.values() for c in parts))
    left = dict.fromkeys(tiers, 0.0)
    for category in categories:
        sizes = [parts.get(category, 0) / 2**30 for parts in tiers.values()]
        name = category.replace("_", " ")
        axes.barh(list(tiers), sizes, left=list(left.values()), label=name)
        for tier, size in zip(tiers, sizes, strict=True):
            left[tier] += size
    axes.invert_yaxis()
    axes.set(xlabel="GiB", title=title)
    axes.legend(fontsize="small", ncols=3)
    _save(figure, target)


def _save(figure: Any, target: Path) -> None:
    try:
        figure.savefig(target, dpi=120)
    except OSError as error:
        raise OptionError(
            f"--plot {target}: cannot be written: {error.strerror}", "name another file"
        ) from error


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError(
            "--plot needs matplotlib, which is not installed", "pip install 'flexinfer[plot]'"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot
