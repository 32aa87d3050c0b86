"""Child: does the device compute what the CPU path computes, for a block type in every strategy?

For each type single products (`products`), then a tiny model: logits after a prompt and after each
of a few given tokens. Three ways of computing: `int8`, with activations rounded as the CPU rounds
them and products in float32; `torch`, as users run it, products of dequantised weights in the
device's own type; `fused`, the same through Triton's kernels. In each, an assignment of layers
gives the same bits at every --vram and --ram, with and without prefetching.

Prints one JSON line for each type, as soon as it is known; exits with 3 where the device is lost.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import child
import numpy as np
import products
from models import SHAPES, TYPES, write_model

from flexinfer import LLM
from flexinfer.errors import BudgetError, FlexInferError
from flexinfer.executor.device_setup import plan_device
from flexinfer.executor.kv_cache import Sequence
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import plan_run
from flexinfer.formats.quants import BlockType
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import Span
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.planner.device import DevicePlan
from flexinfer.planner.planner import make_plan
from flexinfer.units import GiB, MiB

PROMPT = [1] + [(37 * i * i + 11 * i + 5) % 300 + 3 for i in range(29)]
NEW = [(53 * i * i + 7 * i) % 300 + 3 for i in range(4)]
ABUNDANT_RAM, AMPLE_VRAM = 1 << 40, GiB  # the second with room for CUDA's libraries
LOST_DEVICE = 3

STRATEGIES: dict[str, dict[str, str]] = {
    "gpu-offload": {"strategy": "gpu-offload"},
    "flexgen": {"strategy": "flexgen"},
    "split:1": {"strategy": "split:1"},
    "split:2": {"strategy": "split:2"},
    "splitgen": {"strategy": "splitgen"},
    "cpu, gpu-offload": {"prefill_strategy": "cpu", "decode_strategy": "gpu-offload"},
    "gpu-offload, cpu": {"prefill_strategy": "gpu-offload", "decode_strategy": "cpu"},
}
FEW_STRATEGIES = {name: STRATEGIES[name] for name in ("gpu-offload", "split:2")}
# Share of the host's weights that is locked there, and prefetching: for each strategy the two
# device budgets are the first with the first, the second with the others.
HOST = ((1.0, True), (0.3, True), (0.3, False))


@dataclass(frozen=True, slots=True)
class Way:
    """One way of computing. Tolerances are parts of the largest value."""

    name: str
    activations: Literal["float", "int8"]
    fused: bool
    strategies: Mapping[str, Any]
    product_tolerance: float
    logit_tolerance: float


# A sum in another order tips an activation to the next integer now and then, and that one tips
# others: random models end up 1 to 2 % apart. With float weights nothing is rounded.
INT8 = Way("int8", "int8", False, STRATEGIES, 1e-5, 5e-2)
FLOATS = replace(INT8, logit_tolerance=2e-3)
# Weights and activations to bfloat16, each 2^-9 off at most, where the CPU rounds to int8.
TORCH = Way("torch", "float", False, FEW_STRATEGIES, 2e-2, 1e-1)
FUSED = replace(TORCH, name="fused", fused=True)


class Disagreement(Exception):
    """What differs by how much."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """Of a variant: the largest of any logit, as a part of the largest logit, and where."""

    part: float
    strategy: str


class Case:
    """One model, on the CPU alone and with a device. Budgets count from 0, not from this
    process.
    """

    def __init__(self, model: Model, kv_type: str) -> None:
        self._model = model
        self._kv_type = kv_type
        context_tokens = len(PROMPT) + len(NEW)
        options = Options(ctx=context_tokens, threads=2, kv_type=kv_type)
        self._planned = plan_run(model, options, len(PROMPT), len(NEW))

    def expected(self) -> np.ndarray:
        with self._run(None, None, 1.0, True) as llm:
            return forced(llm)

    def runs(self, device: TorchDevice, name: str) -> Iterator[tuple[DevicePlan, np.ndarray]]:
        """Logits at two device budgets, with all of the host's weights locked there or not."""
        for vram_bytes, hosts in (
            (AMPLE_VRAM, HOST[:1]),
            (self._least_vram(device, name), HOST[1:]),
        ):
            plan = self._device_plan(device, name, vram_bytes)
            for share, prefetch in hosts:
                with self._run(device, plan, share, prefetch) as llm:
                    yield plan, forced(llm)

    @contextmanager
    def _run(
        self, device: TorchDevice | None, plan: DevicePlan | None, share: float, prefetch: bool
    ) -> Iterator[LLM]:
        planned = self._planned

        def make(budget_bytes: int) -> Any:
            return make_plan(
                self._model.spec,
                self._model.weights,
                planned.plan.workload,
                planned.hardware,
                budget_bytes=budget_bytes,
                base_bytes={Category.INTERPRETER: 0, Category.TOKENIZER: 0},
                kv_type=self._kv_type,
                prefetch=prefetch,
                device=plan,
            )

        whole = make(ABUNDANT_RAM)
        streamed = (1 - share) * whole.parts[Category.LOCKED]
        host = make(round(whole.total_bytes - streamed) + 16 * MiB)
        with LLM.from_plan(self._model, replace(planned, plan=host, device=device)) as llm:
            yield llm

    def _device_plan(self, device: TorchDevice, name: str, vram_bytes: int) -> DevicePlan:
        options = Options(
            device=device.name, vram=vram_bytes, kv_type=self._kv_type, **STRATEGIES[name]
        )
        planned = self._planned
        plan = plan_device(
            self._model,
            options,
            planned.plan.workload,
            device,
            planned.hardware,
            budget_bytes=ABUNDANT_RAM,
            base_bytes=0,
            promise=_not_asked,
        )
        assert plan is not None
        return plan

    def _least_vram(self, device: TorchDevice, name: str) -> int:
        """The smallest --vram that is not refused: nothing is locked, no cache kept."""
        least, most = 0, AMPLE_VRAM
        while most - least > 1:
            middle = (least + most) // 2
            try:
                self._device_plan(device, name, middle)
                most = middle
            except BudgetError:
                least = middle
        return most


def _not_asked(plan: DevicePlan | None) -> Any:
    """Only `auto` asks what plans promise."""
    raise NotImplementedError


def forced(llm: LLM) -> np.ndarray:
    """Logits after the prompt and each of NEW: [1 + NEW, vocabulary]."""
    sequence = Sequence(llm.session.pools, len(PROMPT) + len(NEW))
    rows, start = [], 0
    for tokens in (PROMPT, *([token] for token in NEW)):
        sequence.reserve(start + len(tokens))
        span = Span(0, len(tokens), start, sequence.tables)
        sweep = llm.session.executor.sweep
        phase = {"phase": "decode" if start else "prefill"} if llm.plan.device else {}
        rows.append(sweep(tokens, (span,), **phase).copy())
        sequence.tokens += tokens
        start += len(tokens)
    sequence.truncate(0)
    return np.stack(rows)


def ways(kind: BlockType, on_cuda: bool) -> Iterator[Way]:
    yield FLOATS if kind.name in products.FLOAT_TYPES else INT8
    yield TORCH
    if on_cuda and importlib.util.find_spec("triton"):
        from flexinfer.ops.torch_triton import KINDS

        if kind.name in KINDS:
            yield FUSED


def check(model: Model, kind: BlockType, name: str, factor: float) -> dict[str, Any]:
    """A row of the report; what is amiss in one way of computing does not hide the others."""
    report: dict[str, Any] = {"type": kind.name, "runs": 0}
    case = Case(model, "f32" if kind.name in products.FLOAT_TYPES else "f16")
    expected = case.expected()
    if not np.isfinite(expected).all():
        return report | {"error": "the CPU's logits are not finite"}
    errors = []
    for way in ways(kind, name != "cpu"):
        try:
            device = TorchDevice(name, way.activations, fused=way.fused)
            _compare(way, device, case, model.spec, kind, expected, factor, report)
        except (Disagreement, FlexInferError) as error:
            errors.append(f"{way.name}: {error}")
    return report | ({"error": "; ".join(errors)} if errors else {})


def _compare(
    way: Way,
    device: TorchDevice,
    case: Case,
    spec: ModelSpec,
    kind: BlockType,
    expected: np.ndarray,
    factor: float,
    report: dict[str, Any],
) -> None:
    """Adds to the report. Raises Disagreement."""
    part = products.product_deviation(device, spec, kind, by_kernels=way.activations == "int8")
    report[f"product_{way.name}"] = part
    _within(part, factor * way.product_tolerance, "a product")
    most = np.abs(expected).max()
    bits: dict[Any, np.ndarray] = {}  # by assignment of layers
    worst, unequal = Deviation(0.0, ""), ""
    for strategy in way.strategies:
        for plan, logits in case.runs(device, strategy):
            report["runs"] += 1
            first = bits.setdefault((plan.prefill, plan.decode), logits)
            if not np.array_equal(first, logits):
                apart = np.abs(first - logits).max() / most
                unequal = f"{strategy}: other bits at --vram {plan.vram_bytes}, {apart:.2g} apart"
            part = float(np.abs(logits - expected).max() / most)
            worst = max(worst, Deviation(part, strategy), key=lambda d: d.part)
    report[f"logit_{way.name}"] = worst.part
    _within(worst.part, factor * way.logit_tolerance, f"{worst.strategy}: a logit")
    if unequal:
        raise Disagreement(unequal)


def _within(part: float, tolerance: float, what: str) -> None:
    if not part <= tolerance:
        raise Disagreement(
            f"{what} is {part:.2g} of the largest from the CPU's, more than {tolerance:.2g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--after", help="only the types after this one")
    parser.add_argument("--tolerance-factor", type=float, default=1.0)
    args = parser.parse_args()
    first = args.types.index(args.after) + 1 if args.after else 0
    for kind in args.types[first:]:
        started = time.perf_counter()
        path = args.folder / f"tiny-{kind}.gguf"
        lost = False
        try:
            write_model(path, SHAPES["tiny"], TYPES[kind])
            row = check(open_model(path), TYPES[kind], args.device, args.tolerance_factor)
        except FlexInferError as error:
            row = {"type": kind, "error": str(error)}
        except Exception as error:  # torch's, Triton's: after one of CUDA's nothing works here
            row = {"type": kind, "error": f"{type(error).__name__}: {error}"}
            lost = args.device != "cpu"
        path.unlink()
        print(json.dumps(row | {"seconds": time.perf_counter() - started}), flush=True)
        if lost:
            sys.exit(LOST_DEVICE)


if __name__ == "__main__":
    child.run(main)
