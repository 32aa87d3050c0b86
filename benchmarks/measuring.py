"""Rounds of all candidates at several budgets of a model, each result on disk as soon as it is
there; a run that was killed goes on where it was.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from candidates import BARE_BYTES, CANDIDATES, MMAP_TOKENS, Candidate, Run, measure
from machine import RunFailed, held_disk, machine, run_json

from flexinfer.executor.model import open_model
from flexinfer.units import parse_bytes

LEAST_NEW_TOKENS, MOST_NEW_TOKENS = 3, 16  # a prompt's sweep, then 2 at the least
MMAP_SLOWER = 3  # than direct reads, to plan time with: page faults, and the whole file each token


@dataclass(frozen=True, slots=True)
class Shape:
    """What a file is, by its header."""

    name: str
    file_bytes: int
    weight_bytes: int  # that a sweep needs: the embedding left out
    block_type: str  # of most of them
    layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int


@dataclass(frozen=True, slots=True)
class Budget:
    percent: float  # of the file
    limit_bytes: int
    new_tokens: int
    ring_bytes: int
    disk_bytes_per_s: float  # as the plan found it
    run_s: float  # predicted: loading, prompt and decoding


@dataclass(slots=True)
class ModelRecord:
    """All that was measured on one file."""

    shape: Shape
    base_bytes: int  # what a budget has beside its share of the file
    budgets: list[Budget] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # by percent: why
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, data: dict[str, Any]) -> Self:
        runs = [Run(**{**run, "token_ids": _tuple(run.get("token_ids"))}) for run in data["runs"]]
        budgets = [Budget(**budget) for budget in data["budgets"]]
        shape = Shape(**data["shape"])
        return cls(shape, data["base_bytes"], budgets, dict(data["left_out"]), runs)

    def has(self, percent: float, round_index: int, candidate: str) -> bool:
        key = (percent, round_index, candidate)
        return any((r.percent, r.round, r.candidate) == key and r.done for r in self.runs)

    def add(self, run: Run) -> None:
        """In the place of an earlier failure of the same."""
        key = (run.percent, run.round, run.candidate)
        self.runs = [r for r in self.runs if (r.percent, r.round, r.candidate) != key]
        self.runs.append(run)

    @property
    def spent_s(self) -> float:
        return sum(run.wall_s for run in self.runs)


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


@dataclass(slots=True)
class Record:
    """The raw figures of one machine, as a JSON file."""

    machine: str
    models: list[ModelRecord]

    @classmethod
    def load(cls, path: Path) -> Self:
        data = json.loads(path.read_text())
        return cls(data["machine"], [ModelRecord.load(model) for model in data["models"]])

    def save(self, path: Path) -> None:
        """All or nothing: a killed run leaves the file before or the file after."""
        partial = path.with_name(path.name + ".partial")
        text = json.dumps(asdict(self)).replace('{"percent"', '\n{"percent"')  # a run, a line
        partial.write_text(text + "\n")
        partial.replace(path)

    def model(self, shape: Shape, base_bytes: int) -> ModelRecord:
        """This file's record, new if there is none."""
        for model in self.models:
            if model.shape == shape and model.base_bytes == base_bytes:
                return model
        self.models.append(ModelRecord(shape, base_bytes))
        return self.models[-1]


def add_options(parser: argparse.ArgumentParser, *, percent: Sequence[float]) -> None:
    names = [candidate.name for candidate in CANDIDATES]
    add = parser.add_argument
    add("--percent", type=float, nargs="+", default=percent, help="of the file: the budgets")
    add(
        "--base",
        type=parse_bytes,
        default="0.7GB",
        metavar="SIZE",
        help="added to each budget, for all that is not a weight; default: 0.7GB",
    )
    add("--candidates", nargs="+", default=names, choices=names, metavar="NAME")
    add("--llamacpp", metavar="PYTHON", help="an interpreter with llama-cpp-python: llamacpp.py")
    add(
        "--disk",
        type=parse_bytes,
        metavar="SIZE",
        help="hold the disk at this many bytes/s at most, by the kernel's throttling",
    )
    add("--minutes", type=float, default=60, help="per model, default: 60")
    add("--rounds", type=int, default=3, help="at most, default: 3; fewer where time is short")
    add("--json", type=Path, metavar="FILE", help="a new file for the raw figures")
    add("--resume", type=Path, metavar="FILE", help="go on with the raw figures of an earlier run")


def open_record(args: argparse.Namespace, default: Path) -> tuple[Record, Path]:
    """The record to go on with, or a new one, and its file. From here on SIGTERM ends the run that
    is under way, too, and removes its group.
    """
    if os.geteuid() != 0:
        sys.exit("memory control groups need root")
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    held = f"; disk held at {args.disk / 1e9:g} GB/s" if args.disk else ""
    if args.resume:
        record = Record.load(args.resume)
        if record.machine.partition(";")[2] != held.lstrip(";"):
            sys.exit(f"{args.resume} is of {record.machine}: resume with the --disk that it had")
        return record, args.resume
    path = args.json or default
    if path.exists():
        sys.exit(f"{path} exists: --resume {path} goes on with it, --json names another")
    return Record(machine() + held, []), path


def shape_of(path: Path) -> Shape:
    model = open_model(path)
    spec, tensors = model.spec, [m.tensor for m in model.weights.matrices]
    sizes: dict[str, int] = {}
    for tensor in tensors:
        kind = tensor.block_type.name
        sizes[kind] = sizes.get(kind, 0) + tensor.size_bytes
    return Shape(
        str(model.checkpoint.metadata.get("general.name", path.stem)),
        sum(file.stat().st_size for file in {t.path for t in tensors}),
        sum(sizes.values()),
        max(sizes, key=lambda kind: sizes[kind]),
        len(spec.layers),
        spec.dim,
        spec.ffn_dim,
        spec.heads,
        spec.kv_heads,
    )


def sweep_model(record: Record, target: Path, path: Path, args: argparse.Namespace) -> ModelRecord:
    """The model at all budgets, on a disk that is held at `--disk` where that is given.

    All runs plan by one profile, taken first: by a look of their own each would choose its ring,
    and so lock other bytes, as the disk happened to be.
    """
    with ExitStack() as stack:
        if args.disk:
            stack.enter_context(held_disk(path, args.disk))
        os.environ["XDG_CACHE_HOME"] = stack.enter_context(TemporaryDirectory(prefix="flexinfer-"))
        run_json([sys.executable, "-m", "flexinfer", "profile", str(path), "--json", "--quiet"])
        return _sweep(record, target, path, args)


def _sweep(record: Record, target: Path, path: Path, args: argparse.Namespace) -> ModelRecord:
    """Measure a model at all budgets, in rounds, as far as `--minutes` reach; saves every result.

    The first budget's first round is measured whatever it takes. Every second round goes backwards,
    so that a disk that only gets slower, or faster, favours nobody.
    """
    model = record.model(shape_of(path), args.base)
    chosen = [c for c in CANDIDATES if c.name in args.candidates]
    if not args.llamacpp:
        chosen = [c for c in chosen if not c.is_llamacpp]
    for round_index in range(args.rounds):
        for position, percent in enumerate(args.percent):
            wanted = [c for c in chosen if not model.has(percent, round_index, c.name)]
            if not wanted:
                continue
            budget = _budget(model, path, percent, args, len(chosen))
            if budget is None:
                record.save(target)
                continue
            left_s = args.minutes * 60 - model.spent_s
            needed_s = _needed_s(model, budget, wanted)
            if needed_s > left_s and (round_index or position):
                if round_index == 0:
                    model.left_out[f"{percent:g}"] = (
                        f"a round takes about {needed_s / 60:.0f} minutes and "
                        f"{max(0, left_s) / 60:.0f} of {args.minutes:g} were left"
                    )
                    record.save(target)
                continue
            model.left_out.pop(f"{percent:g}", None)
            for candidate in wanted if round_index % 2 == 0 else wanted[::-1]:
                run = measure(
                    candidate,
                    path,
                    percent=percent,
                    round_index=round_index,
                    limit_bytes=budget.limit_bytes,
                    new_tokens=budget.new_tokens,
                    llamacpp=args.llamacpp,
                    timeout_s=300 + 6 * _expected_s(model, budget, candidate),
                )
                model.add(run)
                record.save(target)
                _tell(model, run)
    return model


def _budget(
    model: ModelRecord, path: Path, percent: float, args: argparse.Namespace, candidates: int
) -> Budget | None:
    """The budget as planned earlier, or planned now; None, and why in the record, where the plan
    refuses it or nothing would stream.
    """
    for budget in model.budgets:
        if budget.percent == percent:
            return budget
    limit = int(model.shape.file_bytes * percent / 100) + args.base
    command = [sys.executable, "-m", "flexinfer", "plan", str(path), "--json", f"--ram={limit}"]
    try:
        plan = run_json([*command, "--prompt-tokens=16", f"--new-tokens={MOST_NEW_TOKENS}"])
    except RunFailed as failed:
        lines = [line for line in str(failed).splitlines() if line.startswith("error:")]
        model.left_out[f"{percent:g}"] = lines[-1].removeprefix("error: ") if lines else str(failed)
        return None
    if not plan["streamed_bytes_per_sweep"]:
        model.left_out[f"{percent:g}"] = "all weights fit: nothing streams"
        return None
    share_s = args.minutes * 60 / (len(args.percent) * args.rounds * candidates)
    first_s = plan["predicted_load_s"] + plan["predicted_ttft_s"]
    first_s += 2 * BARE_BYTES / plan["disk_bytes_per_s"] + 2
    tpot_s = plan["predicted_tpot_s"]
    new = 1 + int((share_s - first_s) / tpot_s)
    new = min(MOST_NEW_TOKENS, max(LEAST_NEW_TOKENS, new))
    run_s = first_s + (new - 1) * tpot_s
    budget = Budget(percent, limit, new, plan["parts"]["ring"], plan["disk_bytes_per_s"], run_s)
    model.budgets.append(budget)
    return budget


def _expected_s(model: ModelRecord, budget: Budget, candidate: Candidate) -> float:
    """Of one run: as the latest one took, else as planned."""
    for run in reversed(model.runs):
        if (run.percent, run.candidate) == (budget.percent, candidate.name) and run.done:
            return run.wall_s
    if candidate.is_llamacpp:  # reads the file once to load, then once for each token
        whole_s = model.shape.file_bytes / budget.disk_bytes_per_s
        return MMAP_SLOWER * whole_s * (MMAP_TOKENS + 1)
    return budget.run_s


def _needed_s(model: ModelRecord, budget: Budget, wanted: Sequence[Candidate]) -> float:
    return sum(_expected_s(model, budget, candidate) for candidate in wanted)


def _tell(model: ModelRecord, run: Run) -> None:
    figure = f"{run.tpot_s:8.3f} s a token" if run.tpot_s else f"failed: {run.error}"
    print(
        f"{model.shape.name}  {run.limit_bytes / 1e9:6.2f} GB  round {run.round + 1}  "
        f"{run.candidate:16} {figure}  disk {run.disk_bytes_per_s / 1e9:.2f} GB/s  "
        f"({model.spent_s / 60:.1f} min)",
        file=sys.stderr,
        flush=True,
    )
