"""The picture of a sweep: tokens/s over the budget, and times as fast as mmap, a column a model.

Needs matplotlib. Colours are Okabe and Ito's, which are told apart without seeing red or green too;
what is read when needed has dashed lines, and every kind a mark of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from arithmetic import Cell, cells
from candidates import (
    ATTENTION_FIRST,
    FFN_FIRST,
    LAYER,
    MMAP,
    ROWS,
    SERIAL_LAYER,
    SERIAL_ROWS,
    TENSOR,
)
from measuring import ModelRecord
from paper import paper_model, title

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator


@dataclass(frozen=True, slots=True)
class Style:
    colour: str
    marker: str
    line: str = "-"
    width: float = 1.4

    def options(self) -> dict[str, Any]:
        hollow = "white" if self.line == "--" else self.colour
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "linewidth": self.width,
            "markersize": 5.5,
            "markerfacecolor": hollow,
            "markeredgewidth": 1.2,
        }


STYLES = {  # in the order of the legend
    ROWS: Style("#0072B2", "o", width=2.4),
    TENSOR: Style("#D55E00", "s"),
    ATTENTION_FIRST: Style("#009E73", "^"),
    FFN_FIRST: Style("#CC79A7", "v"),
    LAYER: Style("#E69F00", "D"),
    SERIAL_ROWS: Style("#0072B2", "o", "--"),
    SERIAL_LAYER: Style("#E69F00", "D", "--"),
    MMAP: Style("#000000", "X"),
}
LABELS = {
    ROWS: "rows (ours)",
    TENSOR: "tensor (the paper's)",
    LAYER: "layer",
    MMAP: "llama.cpp, mmap",
}
BOUND_LABEL = "bound of rows"
PAPER_LABEL = "the paper's range"
FEW_TICKS, TICKS = (1, 2, 5), (1, 1.5, 2, 3, 5, 7)
WIDE = 50  # from the least to the most, beyond which few ticks do


def draw(models: Sequence[ModelRecord], target: Path) -> None:
    """Write a picture of all models that have figures."""
    columns = [(model, found) for model in models if (found := cells(model))]
    if not columns:
        return
    with_mmap = any(cell.of(MMAP) for _, found in columns for cell in found)
    rows = 2 if with_mmap else 1
    figure, grid = plt.subplots(
        rows,
        len(columns),
        figsize=(1.2 + 3.6 * max(2, len(columns)), 1.0 + 3.3 * rows),
        squeeze=False,
        sharex="col",
        layout="constrained",
    )
    for column, (model, found) in enumerate(columns):
        _speed(grid[0][column], found)
        grid[0][column].set_title(title(model.shape), fontsize=11, fontweight="bold")
        if with_mmap:
            _ratio(grid[1][column], model, found)
        grid[-1][column].set_xlabel("memory budget, GB")
    grid[0][0].set_ylabel("decode, tokens/s")
    if with_mmap:
        grid[1][0].set_ylabel("times as fast as mmap")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9
    )
    figure.savefig(target, dpi=144)
    plt.close(figure)


def _speed(axes: Any, found: Sequence[Cell]) -> None:
    bound = [(_gb(cell), 1 / cell.bound_s) for cell in found if cell.bound_s]
    if bound:
        axes.plot(*zip(*bound, strict=True), color="#777777", lw=5, alpha=0.3, label=BOUND_LABEL)
    for name, style in reversed(STYLES.items()):  # ours on top
        points = [(_gb(cell), 1 / tpot_s) for cell in found if (tpot_s := cell.tpot_s(name))]
        if points:
            label = LABELS.get(name, name)
            axes.plot(*zip(*points, strict=True), **style.options(), label=label)
    _log(axes)


def _ratio(axes: Any, model: ModelRecord, found: Sequence[Cell]) -> None:
    paper = paper_model(model.shape)
    if paper:
        axes.axhspan(*paper.over_mmap, color="#56B4E9", alpha=0.22, lw=0, label=PAPER_LABEL)
    for name, style in reversed(STYLES.items()):
        gains = [(cell, gain) for cell in found if (gain := cell.gain(MMAP, name))]
        if name == MMAP or not gains:
            continue
        places = [_gb(cell) for cell, _ in gains]
        axes.plot(places, [gain.median for _, gain in gains], **style.options())
        if name in (ROWS, TENSOR):
            low = [min(gain.measured) for _, gain in gains]
            high = [max(gain.measured) for _, gain in gains]
            axes.vlines(places, low, high, color=style.colour, lw=1.2, alpha=0.7)
    axes.axhline(1, **{**STYLES[MMAP].options(), "marker": None, "linewidth": 1})
    _log(axes)


def _log(axes: Any) -> None:
    """Powers of ten with a few steps between them, written as plain numbers."""
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.1)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=FEW_TICKS if high > WIDE * low else TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _gb(cell: Cell) -> float:
    return cell.budget.limit_bytes / 1e9
