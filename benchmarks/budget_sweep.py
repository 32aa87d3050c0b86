"""Tokens per second over the budget: each policy, prefetch on and off, llama.cpp beside, the bound.

    python benchmarks/budget_sweep.py MODEL.gguf [--percent 5 15 25 50 75 90] [--llamacpp PYTHON]
        [--candidates NAME ...] [--disk 1GB] [--minutes 60] [--rounds 3]
        [--json FILE | --resume FILE] [--plot FILE] [--report FILE]

A budget is that percentage of the file and `--base` (0.7 GB), as `--ram` and as the limit of a
memory control group (needs root). All runs plan by one `flexinfer profile`, taken first, so that
none chooses its ring by a look of its own. The candidates of one budget run one after the other, in
rounds, so that a drift of the machine meets all alike; figures are medians. `--disk` holds the disk
at a rate (cgroup version 1), where its own would drift. The bound is the longer of computing alone
and of the bytes that `rows` streams over the bare bandwidth, measured before and
after every run. Results are saved as they come: `--resume` goes on with a run that was killed,
`--report` only prints (and plots) what a file has.
"""

import argparse
from pathlib import Path

from arithmetic import Cell, cells
from candidates import CANDIDATES
from measuring import ModelRecord, Record, add_options, open_record, sweep_model

BOUND = "bound of rows"


def table(model: ModelRecord) -> list[str]:
    """Tokens/s, a line for each budget."""
    names = [candidate.name for candidate in CANDIDATES]
    head = ["budget GB", "disk GB/s", *names, BOUND]
    lines = ["  ".join(head)]
    for cell in cells(model):
        numbers = [cell.budget.limit_bytes / 1e9, cell.disk_bytes_per_s / 1e9]
        figures = [f"{number:.2f}" for number in numbers]
        figures += [_rate(cell.tpot_s(name)) for name in names] + [_rate(cell.bound_s)]
        lines.append("  ".join(f.rjust(len(h)) for f, h in zip(figures, head, strict=True)))
    lines += [f"{percent} %: {why}" for percent, why in model.left_out.items()]
    return lines


def fastest(cell: Cell) -> str:
    """How `rows` stands beside the best of the other policies."""
    others = [c.name for c in CANDIDATES if not c.is_llamacpp and c.name != "rows"]
    gains = {name: gain for name in others if (gain := cell.gain(name, "rows"))}
    if not gains:
        return "nothing to hold rows against"
    best = min(gains, key=lambda name: gains[name].median)
    share = gains[best].median - 1
    return f"rows beside {best}, the best of the others: {100 * share:+.1f} %"


def _rate(tpot_s: float | None) -> str:
    return f"{1 / tpot_s:.3g}" if tpot_s else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    add_options(parser, percent=(5, 15, 25, 50, 75, 90))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="needs matplotlib")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing")
    args = parser.parse_args()
    if args.report:
        record = Record.load(args.report)
        models = record.models
    elif args.model is None:
        parser.error("give a MODEL, or --report FILE")
    else:
        record, target = open_record(args, Path("budget_sweep.json"))
        models = [sweep_model(record, target, args.model, args)]
    for model in models:
        print(f"{model.shape.name}; {record.machine}")
        print("\n".join(table(model)))
        for cell in cells(model):
            print(f"{cell.budget.limit_bytes / 1e9:.2f} GB: {fastest(cell)}")
    if args.plot:
        from plots import draw

        draw(models, args.plot)


if __name__ == "__main__":
    main()
