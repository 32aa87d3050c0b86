"""Predictions against measurements on this machine, the profile taken within the same run.

    python benchmarks/prediction.py MODEL.gguf ... [--budgets 5] [--new-tokens 32]
        [--prompts 32 512 2048] [--repeat 3] [--rounds 1] [--disk 1GB] [--json FILE]

For each model: time to the first token for prompts of each length, with everything in memory, and
time per token at budgets from the least to all of it, prefetching and not. Each is one `flexinfer
bench` between two of `flexinfer profile`, into a cache of this run's own: neighbours change what a
virtual machine gives within seconds. Its median is held against the mean of what is predicted by
the profile before and by the one after. `--rounds` goes over all of them several times and holds
the median measurement against the median prediction. An error is measured over predicted, less one.
Nothing is fitted to what is measured here. `--disk` holds the disk at a rate (cgroup version 1,
root), where its own would change between the two.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from machine import held_disk, machine, run_json

from flexinfer.units import parse_bytes

PROMPT = "--prompt-tokens=32"
COMMAND = [sys.executable, "-m", "flexinfer"]


@dataclass(slots=True)
class Point:
    """Something that is predicted, and what was found in each round."""

    model: Path
    what: str  # a key of a bench's run: "ttft_s", "tpot_s"
    options: Sequence[str]
    measured_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        return median(self.measured_s) / median(self.predicted_s) - 1

    def measure(self, repeat: int) -> None:
        """The profile in the cache is of the moment before; of the moment after when it returns."""
        command = [*COMMAND, "bench", str(self.model), "--json", "--quiet", f"--repeat={repeat}"]
        run: dict[str, Any] = run_json([*command, *self.options])["runs"][0]
        if "error" in run:
            sys.exit(f"{' '.join(self.options)}: {run['error']}")
        profile(self.model)
        after = run_json([*COMMAND, "plan", str(self.model), "--json", *self.options])
        predicted = f"predicted_{self.what}"
        self.measured_s.append(run[self.what])
        self.predicted_s.append(fmean((run[predicted], after[predicted])))

    def __str__(self) -> str:
        measured_s, predicted_s = median(self.measured_s), median(self.predicted_s)
        return (
            f"{self.model.stem[:24]:24} {self.what[:4].upper()} {' '.join(self.options):60} "
            f"measured {measured_s:8.4f} s, predicted {predicted_s:8.4f} s, "
            f"{100 * self.error:+6.1f} %"
        )


def profile(model: Path) -> None:
    run_json([*COMMAND, "profile", str(model), "--json", "--quiet"])


def points(model: Path, args: argparse.Namespace) -> Iterator[Point]:
    for tokens in args.prompts:
        yield Point(model, "ttft_s", [f"--prompt-tokens={tokens}", "--new-tokens=1"])
    for budget in budgets(model, args.budgets):
        for reading in ([], ["--no-prefetch"]):
            ram = f"--ram={budget >> 20}MiB"
            yield Point(model, "tpot_s", [ram, PROMPT, f"--new-tokens={args.new_tokens}", *reading])


def budgets(model: Path, count: int) -> list[int]:
    """From the least, a little above it as processes differ, to the whole model."""
    workload = (PROMPT, "--new-tokens=32")
    sweep = run_json([*COMMAND, "plan", str(model), *workload, "--sweep", "--json"])["sweep"]
    low, high = sweep[0]["budget_bytes"] + (4 << 20), sweep[-1]["budget_bytes"] + (4 << 20)
    return [low + (high - low) * i // (count - 1) for i in range(count)]


def summary(found: Sequence[Point]) -> Iterator[str]:
    for what in ("tpot_s", "ttft_s"):
        errors = [abs(point.error) for point in found if point.what == what]
        if errors:
            yield (
                f"{what[:4].upper()}: median error {100 * median(errors):.1f} %, "
                f"worst {100 * max(errors):.1f} %, of {len(errors)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--budgets", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--prompts", type=int, nargs="*", default=[32, 512, 2048])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--disk", type=parse_bytes, metavar="SIZE", help="bytes/s at most")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.budgets < 2 or args.rounds < 1:
        parser.error("--budgets must be 2 or more, --rounds 1 or more")
    where = machine() + (f"; disk held at {args.disk / 1e9:g} GB/s" if args.disk else "")
    print(where)
    with ExitStack() as stack:
        if args.disk:
            stack.enter_context(held_disk(args.models[0], args.disk))
        os.environ["XDG_CACHE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        found = {model: list(points(model, args)) for model in args.models}
        for round_ in range(args.rounds):
            print(f"round {round_ + 1}, medians so far")
            for model, of_model in found.items():
                profile(model)
                for point in of_model:
                    point.measure(args.repeat)
                    print(point, flush=True)
    all_points = [point for of_model in found.values() for point in of_model]
    print("\n".join(summary(all_points)))
    if args.json:
        rows = [asdict(p) | {"model": p.model.name, "error": p.error} for p in all_points]
        args.json.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
