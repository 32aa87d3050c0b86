"""FlexInfer on a CUDA device: is it right, how fast is it, does it keep to its memory?

    python scripts/gpu_check [--device cuda] [--json FILE]      (or: make gpu-check)

Builds the package from the checkout, makes its model files on the spot, downloads nothing, and
takes at most six minutes. Each stage says in a line how it went; one that fails does not keep the
others from running. Exit code 1 where any has failed. With `--device cpu` the CPU stands in for the
device: that tries the script, and says nothing of speed.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import report
from install import Lacking, check_runtime, install
from stages import Outcome, Row, Runner

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "build" / "gpu-check"
AGREEMENT_JOBS = 4
AGREEMENT_LIMIT_S, SPEED_LIMIT_S, OFFLOAD_LIMIT_S, OTHER_LIMIT_S = 150, 60, 90, 60
LOST_DEVICE = 3  # exit code of the agreement's child after a row that failed by it


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, …, or cpu: a stand-in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--wheel", type=Path, help="take this wheel instead of building one")
    parser.add_argument(
        "--installed", action="store_true", help="check the flexinfer that this Python has"
    )
    parser.add_argument(
        "--folder", type=Path, help="for the models, 4 GB; default: a temporary one"
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="for all, at most (6)")
    check = parser.add_argument_group("what is checked")
    check.add_argument("--types", nargs="+", help="block types; default: all")
    check.add_argument("--tolerance-factor", type=float, default=1.0)
    check.add_argument(
        "--shape", default="llama-2-7b", help="of the speed model: llama-2-7b, small"
    )
    check.add_argument("--layers", type=int, help="of the speed model; default: the shape's")
    check.add_argument("--type", default="Q4_0", help="block type of the speed model (Q4_0)")
    check.add_argument("--vram", default="2GiB", help="for the speed model (2GiB)")
    check.add_argument("--ram", help="for the speed model; default: what the machine can spare")
    check.add_argument(
        "--strategies",
        nargs="+",
        default=["cpu", "gpu-offload", "flexgen", "splitgen", "split:16", "auto"],
    )
    check.add_argument("--prompt-tokens", type=int, default=512)
    check.add_argument("--new-tokens", type=int, default=8)
    check.add_argument("--no-profile", action="store_true", help="predict from a short look only")
    check.add_argument(
        "--offload-layers", type=int, default=8, help="of the model beside accelerate"
    )
    check.add_argument("--offload-vram", default="768MiB", help="there (768MiB)")
    args = parser.parse_args()
    if args.new_tokens < 2:
        parser.error("--new-tokens must be 2 or more: a time per token needs two")
    if args.device.startswith("emulated:"):
        parser.error("--device: an emulated accelerator says nothing of a GPU")
    for option, folder in (("--folder", args.folder), ("--json", args.json and args.json.parent)):
        if folder is not None and not folder.is_dir():
            parser.error(f"{option}: there is no folder {folder}")
    return args


class Check:
    """The stages in their order; `outcomes` are those done."""

    def __init__(self, args: argparse.Namespace, runner: Runner, folder: Path) -> None:
        self._args = args
        self._runner = runner
        self._folder = folder
        self.outcomes: list[Outcome] = []

    def machine(self) -> Outcome:
        return self._script("machine", "machine.py", [*self._device], OTHER_LIMIT_S)

    def agreement(self, machine: Row) -> list[Row]:
        """Several children at once, each with some of the types: compiling takes processors."""
        types = self._args.types or machine["types"]
        jobs = max(1, min(AGREEMENT_JOBS, machine["cpus"] // 4, len(types)))
        with ThreadPoolExecutor(jobs) as threads:
            parts = threads.map(self._agreement_of, (types[i::jobs] for i in range(jobs)))
            rows = [row for part in parts for row in part]
        return sorted(rows, key=lambda row: types.index(row["type"]))

    def _agreement_of(self, types: list[str]) -> list[Row]:
        """One child; another for the rest where a type's failure lost the device."""
        arguments = [*self._device, "--folder", self._folder, "--types", *types]
        arguments += ["--tolerance-factor", self._args.tolerance_factor]
        rows: list[Row] = []
        after: list[str] = []
        while True:
            outcome = self._runner.script(
                "agreement", "agreement.py", [*arguments, *after], AGREEMENT_LIMIT_S
            )
            self._done(_of_types(outcome))
            rows += outcome.rows
            if outcome.code != LOST_DEVICE or rows[-1]["type"] == types[-1]:
                return rows
            after = ["--after", rows[-1]["type"]]

    def rates(self) -> Row | None:
        types = ["--types", *self._args.types] if self._args.types else []
        arguments = [*self._device, "--folder", self._folder, *types]
        outcome = self._runner.script("rates", "rates.py", arguments, OTHER_LIMIT_S)
        if outcome.ok and not outcome.rows[0]["page_locked"]:
            outcome = replace(outcome, error="the driver refuses to page-lock our arena")
        self._done(outcome)
        return next((row for row in outcome.rows if "error" not in row), None)

    def speed(self) -> list[tuple[str, Row]]:
        path = self._model("speed model", "speed.gguf", self._args.layers)
        if path is None:
            return []
        if not self._args.no_profile:
            self._command("profile", ["-m", "flexinfer", "profile", str(path), "--json"])
        vram = self._args.vram
        found = [(name, self._timed(name, path, name, vram)) for name in self._args.strategies]
        path.unlink()
        return found

    def beside_accelerate(self) -> list[tuple[str, Row]]:
        missing = [n for n in ("accelerate", "transformers") if not importlib.util.find_spec(n)]
        if missing:
            note = f"not compared: {' and '.join(missing)} not installed"
            self._done(Outcome("accelerate", 0.0, note=note))
            return []
        path = self._model("model beside accelerate", "offload.gguf", self._args.offload_layers)
        if path is None:
            return []
        vram = self._args.offload_vram
        ours = self._timed("ours beside accelerate", path, "gpu-offload", vram)
        arguments = [path, *self._device, "--vram", vram, *self._tokens]
        outcome = self._script("accelerate", "offload.py", arguments, OFFLOAD_LIMIT_S)
        path.unlink()
        theirs = outcome.rows[0] if outcome.rows else {}
        name = f"accelerate {theirs.get('accelerate', '')}, float16"
        return [(f"gpu-offload, {self._args.type}", ours), (name, theirs)]

    def _model(self, name: str, file: str, layers: int | None) -> Path | None:
        path = self._folder / file
        arguments = [path, "--shape", self._args.shape, "--type", self._args.type]
        arguments += ["--layers", layers] if layers else []
        outcome = self._runner.script(name, "make_model.py", arguments, OTHER_LIMIT_S)
        if outcome.ok:
            outcome = replace(outcome, note=f"{path.stat().st_size / 1e9:.3g} GB")
        self._done(outcome)
        return path if outcome.ok else None

    def _timed(self, name: str, path: Path, strategy: str, vram: str) -> Row:
        """A strategy's row, held against its device budget."""
        arguments = [path, *self._device, "--vram", vram, *self._tokens]
        arguments += ["--strategy", strategy]
        arguments += ["--ram", self._args.ram] if self._args.ram else []
        outcome = self._runner.script(name, "speed.py", arguments, SPEED_LIMIT_S)
        row = outcome.rows[0] if outcome.rows else {}
        if outcome.ok:
            used = row.get("peak_device_bytes") or 0
            if used > row["vram_bytes"] > 0:
                error = f"took {used} bytes of device memory, --vram is {row['vram_bytes']}"
                outcome = replace(outcome, error=error)
            outcome = replace(outcome, note=_beside_prediction(row))
        self._done(outcome)
        return row

    @property
    def _device(self) -> tuple[str, str]:
        return "--device", self._args.device

    @property
    def _tokens(self) -> tuple[object, ...]:
        return (
            *("--prompt-tokens", self._args.prompt_tokens),
            *("--new-tokens", self._args.new_tokens),
        )

    def _script(self, name: str, script: str, arguments: list[object], limit_s: float) -> Outcome:
        return self._done(self._runner.script(name, script, arguments, limit_s))

    def _command(self, name: str, arguments: list[str]) -> Outcome:
        return self._done(self._runner.command(name, arguments, OTHER_LIMIT_S))

    def _done(self, outcome: Outcome) -> Outcome:
        self.outcomes.append(outcome)
        print(report.line(outcome), flush=True)
        return outcome


def _beside_prediction(row: Row) -> str:
    ratios = (row[f"{name}_s"] / row[f"predicted_{name}_s"] for name in ("ttft", "tpot"))
    first, then = ratios
    return f"TTFT {first:.2f}, TPOT {then:.2f} of the prediction"


def _of_types(outcome: Outcome) -> Outcome:
    """With each type that failed, and how many were tried."""
    tried = f"{len(outcome.rows)} types, {sum(r.get('runs', 0) for r in outcome.rows)} runs"
    failed = [row for row in outcome.rows if "error" in row]
    if not failed:
        return replace(outcome, note=tried)
    names = ", ".join(row["type"] for row in failed)
    whole = [f"{names} of {tried}", *(f"{row['type']}: {row['error']}" for row in failed)]
    return replace(outcome, error="\n".join(whole))


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=given) as folder:
        yield Path(folder)


def main() -> int:
    args = parse()
    try:
        check_runtime()
        package = None if args.installed else PACKAGE
        if package is not None:
            print("building the package: half a minute or so", flush=True)
            install(ROOT, package, args.wheel)
    except Lacking as lack:
        print(f"error: {lack}", file=sys.stderr)
        return 1
    with _folder(args.folder) as folder:
        check = Check(args, Runner(folder, package, 60 * args.minutes), folder)
        return run(check, args)


def run(check: Check, args: argparse.Namespace) -> int:
    """All stages, the tables, the JSON; the exit code."""
    machine = check.machine()
    found: Row = {"commit": _commit(), "machine": machine.rows[0] if machine.rows else None}
    if machine.ok:
        print(report.headline(machine.rows[0], found["commit"]), flush=True)
        found["agreement"] = check.agreement(machine.rows[0])
        found["rates"] = check.rates()
        found["speed"] = check.speed()
        found["offload"] = check.beside_accelerate()
        _show(found, args)
    for text in report.errors(check.outcomes):
        print(f"\n{text}", file=sys.stderr)
    found["ok"] = all(outcome.ok for outcome in check.outcomes)
    found["stages"] = [
        {"name": o.name, "ok": o.ok, "seconds": o.seconds, "error": o.error, "note": o.note}
        for o in check.outcomes
    ]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["ok"] else 1


def _show(found: Row, args: argparse.Namespace) -> None:
    work = f"{args.prompt_tokens} prompt tokens, {args.new_tokens} new"
    tables = [report.agreement(found["agreement"])]
    if found["rates"]:
        tables.append(report.rates(found["rates"]))
    if found["speed"]:
        title = f"{args.shape} {args.type}, {work}, --vram {args.vram}"
        tables.append(report.speed(title, found["speed"]))
    if found["offload"]:
        vram = f"{args.offload_vram} of device memory"
        title = f"{args.shape} of {args.offload_layers} layers, the same weights, {work}, {vram}"
        tables.append(report.speed(title, found["offload"]))
    for lines in tables:
        print("\n" + "\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
