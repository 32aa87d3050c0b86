"""Strategies on an emulated accelerator: predicted against measured, the choice against the fixed.

    python benchmarks/strategies.py [--model MODEL.gguf] [--links 250 500 1000] [--repeat 5]
        [--json FILE] [--table FILE]

No figure is of a real accelerator. The device is torch's CPU device paced to rates that it reaches
(`flexinfer.ops.torch_emulated`); the host is slow by the reference kernels on one thread
(FLEXINFER_ISA=scalar), so that the device is the faster as a real one is. Without MODEL it is a
made one of 39 MB. Each workload is a prompt and an answer (one sequence: batch is 1), a link,
and budgets; in each the papers' fixed strategies, two that change between the phases, and the
planner's own choice are run, in turns. Every turn begins with a look at host and device, as
`flexinfer run` takes one, and plans and predicts by it; nothing is fitted. Each run is of a model
just loaded. Figures, measured and predicted, are medians over the turns, and an error is the median
of each turn's measured over predicted, less one: some processors change their speed for seconds
at a time. With --json what was measured before is kept and not measured again.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median, mode
from typing import Any

os.environ["FLEXINFER_ISA"] = "scalar"
os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp(prefix="flexinfer-"))  # no profile

import torch
from machine import machine

from flexinfer import LLM, SamplingParams
from flexinfer.errors import BudgetError
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import Machine, Planned, plan_on, plan_run
from flexinfer.memory.ledger import Category
from flexinfer.planner.planner import Workload
from flexinfer.planner.questions import least, possible
from flexinfer.units import MiB

CHOSEN = "auto"
FIXED: dict[str, dict[str, str]] = {
    "cpu": {"strategy": "cpu"},
    "flexgen": {"strategy": "flexgen"},
    "flexgen-opt": {"strategy": "flexgen-opt"},
    "splitgen": {"strategy": "splitgen"},
}
CHANGING: dict[str, dict[str, str]] = {
    "offload/cpu": {"prefill_strategy": "gpu-offload", "decode_strategy": "cpu"},
    "offload/half": {"prefill_strategy": "gpu-offload", "decode_strategy": "split:half"},
}
STRATEGIES = FIXED | CHANGING | {CHOSEN: {}}
TIMES = ("ttft_s", "tpot_s", "latency_s")
FIGURES = (*TIMES, *(f"predicted_{what}" for what in TIMES))
PROMPTS, ANSWERS = (8, 48), (4, 20)
MEMORY = 2500  # MB/s of the device's
NOTHING = {Category.INTERPRETER: 0, Category.TOKENIZER: 0}  # budgets count from 0, not from here
ABUNDANT = 1 << 40
MOST_VRAM = 1 << 30  # as DEVICE has it
DEVICE = """
name = "{name}"
[disk]
bytes_per_s = 1e9
[host]
memory_bytes_per_s = 1e9
[host.kernels.any]
ops_per_s = 1e9
[device]
memory_bytes = "1GiB"
memory_bytes_per_s = {memory}
[device.ops_per_s]
any = 8e9
[device.to_device]
bytes_per_s = {link}
latency_s = 5e-5
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and the budgets it has: shares of the weights that fit beside what must be."""

    link_mb_per_s: int
    prompt_tokens: int
    new_tokens: int
    vram_share: float
    ram_share: float = 1.0


def cases(link: int) -> Iterator[Case]:
    for prompt, new, vram in product(PROMPTS, ANSWERS, (0.0, 0.5)):
        yield Case(link, prompt, new, vram)
    yield Case(link, PROMPTS[1], ANSWERS[1], 1.2)
    yield Case(link, PROMPTS[1], ANSWERS[1], 0.5, 0.3)


def made_model(folder: Path) -> Path:
    """Random float32 weights, by the tests' factory."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from factory import make_gguf

    path = folder / "made.gguf"
    make_gguf(
        path,
        "llama",
        hidden_size=384,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=48,
        num_hidden_layers=6,
        max_position_embeddings=512,
    )
    return path


class Bench:
    """One model on one emulated machine, looked at once."""

    def __init__(
        self, model: Model, link: int, folder: Path, *, memory: int = MEMORY, prefetch: bool = True
    ) -> None:
        path = folder / f"link-{link}-memory-{memory}.toml"
        path.write_text(DEVICE.format(name=path.stem, link=link * 1e6, memory=memory * 1e6))
        self.prefetch = prefetch
        self.model = model
        self.device = f"emulated:{path}"
        options = Options(device=self.device, vram="256MiB", threads=1, strategy="gpu-offload")
        self._options = options

    def look(self) -> None:
        """At host and device, as `flexinfer run` does."""
        planned = plan_run(self.model, self._options, 8, 8)
        self.machine = Machine(planned.hardware, planned.available, planned.context, planned.device)

    def plan(self, case: Case, strategy: dict[str, str]) -> Planned:
        """Raises BudgetError where the strategy does not fit the case's memory."""
        layers = len(self.model.spec.layers)
        named = {k: v.replace("half", str(layers // 2)) for k, v in strategy.items()}
        vram: int | None = self._least_vram(case) + round(case.vram_share * self._weight_bytes)
        if named.get("strategy") == "cpu":
            vram = None  # it could not take effect
        options = Options(device=self.device, vram=vram, threads=1, prefetch=self.prefetch, **named)
        whole = self._plan(case, options, ABUNDANT)
        if case.ram_share == 1.0:
            return whole
        locked = (1 - case.ram_share) * whole.plan.parts[Category.LOCKED]
        return self._plan(case, options, round(whole.plan.total_bytes - locked) + 16 * MiB)

    @property
    def _weight_bytes(self) -> int:
        return sum(m.tensor.size_bytes for m in self.model.weights.matrices)

    def _least_vram(self, case: Case) -> int:
        """The least that streams all layers to the device, to within 64 KiB."""

        def attempt(vram: int) -> Planned:
            options = Options(device=self.device, vram=vram, threads=1, strategy="flexgen")
            return self._plan(case, options, ABUNDANT)

        found = least(possible(attempt), 0, MOST_VRAM, 64 * 1024)
        assert found is not None
        return found

    def _plan(self, case: Case, options: Options, budget_bytes: int) -> Planned:
        context = case.prompt_tokens + case.new_tokens
        workload = Workload(case.prompt_tokens, case.new_tokens, context)
        return plan_on(self.machine, self.model, options, workload, budget_bytes, NOTHING)

    def measure(self, case: Case, repeat: int) -> list[dict[str, Any]]:
        """A row for each strategy, or why there is none. They take turns, so that a drift of the
        machine meets all alike; each turn plans by a look of its own.
        """
        rows = {name: asdict(case) | {"strategy": name} for name in STRATEGIES}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in STRATEGIES}
        for turn in range(repeat):
            self.look()
            for name in STRATEGIES if turn % 2 == 0 else reversed(STRATEGIES):
                try:
                    planned = self.plan(case, STRATEGIES[name])
                except BudgetError as error:
                    rows[name]["refused"] = str(error)
                else:
                    runs[name].append(self.run(case, planned))
        for name, found in runs.items():
            if found:
                rows[name].pop("refused", None)  # in some turn only
                rows[name] |= {what: median(r[what] for r in found) for what in FIGURES}
                rows[name] |= {
                    f"{what}_error": median(r[what] / r[f"predicted_{what}"] for r in found) - 1
                    for what in TIMES
                }
                rows[name] |= {"device": self.device, "turns": found}
        return list(rows.values())

    def run(self, case: Case, planned: Planned) -> dict[str, Any]:
        """One run: its plan, and its figures beside the predicted ones."""
        params = SamplingParams(max_tokens=case.new_tokens, ignore_end=True)
        prompt = [(17 * i + 3) % 300 + 3 for i in range(case.prompt_tokens)]
        with LLM.from_plan(self.model, planned) as llm:
            stats = llm.generate(prompt, params).stats
        part, predicted, more = planned.plan.device, planned.prediction, case.new_tokens - 1
        tpot_s = stats.tpot_s or 0.0
        return {
            "prefill": part.prefill.name if part else "cpu",
            "decode": part.decode.name if part else "cpu",
            "locked_layers": len(part.locked_layers) if part else 0,
            "device_bytes": part.total_bytes if part else 0,
            "ttft_s": stats.ttft_s,
            "tpot_s": tpot_s,
            "latency_s": stats.ttft_s + more * tpot_s,
            "predicted_ttft_s": predicted.ttft_s,
            "predicted_tpot_s": predicted.tpot_s,
            "predicted_latency_s": predicted.ttft_s + more * predicted.tpot_s,
        }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of all predictions, and how near the choice is to the best that was measured."""
    ran = [r for r in rows if "refused" not in r]
    errors = {what: [abs(r[f"{what}_error"]) for r in ran] for what in TIMES}
    by_case: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for r in ran:
        by_case.setdefault(tuple(r[f] for f in Case.__slots__), {})[r["strategy"]] = r
    by_ram = {
        f"{share:g}": median(abs(r["tpot_s_error"]) for r in found)
        for share in sorted({r["ram_share"] for r in ran})
        if (found := [r for r in ran if r["ram_share"] == share])
    }
    return {
        "cases": len(by_case),
        "runs": len(ran),
        "median_error": {what: median(values) for what, values in errors.items()},
        "worst_error": {what: max(values) for what, values in errors.items()},
        "median_tpot_error_by_ram_share": by_ram,
        "choice": _choice(by_case.values(), pooled=False),
        "choice_same_plans_pooled": _choice(by_case.values(), pooled=True),
        "picks": _picks(by_case.values()),
    }


def _picks(cases: Iterable[dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Of the named strategies: how often the one that is predicted the fastest is the fastest, or
    no more than 10 % from it, and how many different ones are the fastest somewhere.
    """
    right, winners = [], set()
    for found in cases:
        named = [r for name, r in found.items() if name != CHOSEN]
        picked = min(named, key=lambda r: r["predicted_latency_s"])
        best = min(named, key=lambda r: r["latency_s"])
        right.append(picked["latency_s"] <= 1.1 * best["latency_s"])
        winners.add(best["strategy"])
    return {"right": sum(right) / len(right), "different_winners": len(winners)}


def _choice(cases: Iterable[dict[str, dict[str, Any]]], *, pooled: bool) -> dict[str, float]:
    """How near the choice came to the best that was measured, and to the best fixed strategy.
    `pooled`: what comes to the same plan counts as one strategy, its figure that of all its runs.
    """
    over_best, over_fixed = [], []
    for found in cases:
        if CHOSEN not in found:
            continue
        latency_s = {name: r["latency_s"] for name, r in found.items()}
        if pooled:
            same: dict[tuple[Any, ...], list[float]] = {}
            for turn in (turn for r in found.values() for turn in r["turns"]):
                same.setdefault(_plan_key(turn), []).append(turn["latency_s"])
            latency_s = {
                name: median(median(same[_plan_key(turn)]) for turn in r["turns"])
                for name, r in found.items()
            }
        over_best.append(latency_s[CHOSEN] / min(latency_s.values()) - 1)
        fixed = [s for name, s in latency_s.items() if name in FIXED]
        over_fixed.append(latency_s[CHOSEN] / min(fixed) - 1)
    if not over_best:
        return {}
    return {
        "within_5_percent_of_best": sum(x <= 0.05 for x in over_best) / len(over_best),
        "over_best_at_most": max(over_best),
        "over_best_fixed_at_least": min(over_fixed),
        "over_best_fixed_at_most": max(over_fixed),
    }


def _has(rows: list[dict[str, Any]], case: Case) -> bool:
    return any(asdict(case).items() <= r.items() for r in rows)


def _plan_key(turn: dict[str, Any]) -> tuple[Any, ...]:
    return turn["prefill"], turn["decode"], turn["locked_layers"], turn["device_bytes"]


def table(rows: list[dict[str, Any]], head: str) -> Iterator[str]:
    yield f"Emulated accelerator, no real one; batch is 1. {head}"
    yield ""
    yield (
        "| link MB/s | prompt | new | vram | ram | strategy | prefill / decode "
        "| TTFT s (predicted) | TPOT ms (predicted) | in all s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        case = (
            f"| {r['link_mb_per_s']} | {r['prompt_tokens']} | {r['new_tokens']} "
            f"| {r['vram_share']:g} | {r['ram_share']:g} | {r['strategy']} "
        )
        if "refused" in r:
            yield f"{case}| does not fit | | | |"
            continue
        phases = mode(f"{turn['prefill']} / {turn['decode']}" for turn in r["turns"])
        yield (
            f"{case}| {phases} "
            f"| {r['ttft_s']:.3f} ({r['predicted_ttft_s']:.3f}) "
            f"| {1e3 * r['tpot_s']:.1f} ({1e3 * r['predicted_tpot_s']:.1f}) "
            f"| {r['latency_s']:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="instead of the made one")
    parser.add_argument("--links", type=int, nargs="+", default=[250, 500, 1000], help="MB/s")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the other core is for the link's threads
    rows: list[dict[str, Any]] = []
    if args.json and args.json.exists():
        rows = json.loads(args.json.read_text())["rows"]
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(args.model or made_model(Path(folder)))
        for link in args.links:
            bench = Bench(model, link, Path(folder))
            for case in cases(link):
                if _has(rows, case):
                    continue
                bench.look()
                found = bench.measure(case, args.repeat)
                rows += found
                print("\n".join(list(table(found, ""))[-len(found) :]), flush=True)
                if args.json:
                    _save(args.json, rows)
    print(json.dumps(summary(rows), indent=1))
    if args.table:
        args.table.write_text("\n".join(table(rows, machine())) + "\n")


def _save(path: Path, rows: list[dict[str, Any]]) -> None:
    facts = {"machine": machine(), "emulated": True, "batch": 1, "rows": rows}
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
