"""The experiments of arXiv 2503.03777 on this machine, its figures and ours side by side.

    python benchmarks/paper_b.py MODEL.gguf ... --llamacpp PYTHON [--percent 75 5 50 25]
        [--minutes 60] [--rounds 3] [--candidates NAME ...] [--json FILE | --resume FILE]
    python benchmarks/paper_b.py --report FILE.json ... [--out benchmarks/paper_b.md]

Measures candidates.py's eight at each budget, in memory control groups (needs root), for at most
`--minutes` a model, and writes a page of Markdown, a picture beside it (with matplotlib) and the
raw figures as JSON, saved after every run: `--resume` goes on with a run that was killed.
`--report` makes the page of such files without measuring. Files of the paper's shapes are known by
their header, also with fewer layers. The page says what its tables mean, arithmetic.py what is
expected.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

from measuring import ModelRecord, Record, add_options, open_record, sweep_model
from paper_report import report

PAGE = Path(__file__).with_suffix(".md")


def write(records: list[Record], sources: list[Path], page: Path) -> None:
    models: list[ModelRecord] = [model for record in records for model in record.models]
    picture = page.with_suffix(".png")
    if importlib.util.find_spec("matplotlib"):
        from plots import draw

        draw(models, picture)
    else:
        print(f"no new {picture.name}: matplotlib is not installed", file=sys.stderr)
    names = [str(path) if path.parent != page.parent else path.name for path in sources]
    page.write_text(report(records, names, picture.name if picture.exists() else None))
    print(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    add_options(parser, percent=(75, 5, 50, 25))  # what tells most first: time may not do for all
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help="measure nothing")
    parser.add_argument("--out", type=Path, default=PAGE, help=f"default: {PAGE.name}")
    args = parser.parse_args()
    if bool(args.report) == bool(args.models):
        parser.error("give either MODELs to measure or --report FILEs")
    if args.report:
        write([Record.load(path) for path in args.report], args.report, args.out)
        return
    record, target = open_record(args, args.out.with_suffix(".json"))
    for path in args.models:
        sweep_model(record, target, path, args)
    write([record], [target], args.out)


if __name__ == "__main__":
    main()
