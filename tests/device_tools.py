"""Models on a host and a device at once, for tests: budgets count from 0, not from this process."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from flexinfer import LLM
from flexinfer.errors import BudgetError
from flexinfer.executor.model import Model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import Planned, plan_run
from flexinfer.memory.ledger import Category
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.planner.device import DevicePlan, make_device_plan
from flexinfer.planner.planner import MAX_SWEEP_TOKENS, Plan, make_plan
from flexinfer.planner.strategies import Strategy, split
from flexinfer.units import MiB

ABUNDANT = 1 << 40


@dataclass
class Bench:
    """Plans for one model and workload: the machine is looked at once."""

    model: Model
    prompt_tokens: int
    new_tokens: int
    activations: str = "int8"  # to compare with the host's

    def __post_init__(self) -> None:
        ctx = self.prompt_tokens + self.new_tokens
        self.planned: Planned = plan_run(self.model, Options(ctx=ctx, threads=1), 16, 16)
        self.workload = replace(
            self.planned.plan.workload,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
        )
        self.opened = TorchDevice("cpu", self.activations)

    @property
    def layers(self) -> int:
        return len(self.model.spec.layers)

    def device_plan(
        self, prefill: Strategy, decode: Strategy, vram: int = ABUNDANT, lock: bool = True
    ) -> DevicePlan:
        return make_device_plan(
            self.model.spec,
            self.model.weights,
            prefill,
            decode,
            vram_bytes=vram,
            prompt_tokens=self.prompt_tokens,
            context_tokens=self.workload.context_tokens,
            max_sweep_tokens=MAX_SWEEP_TOKENS,
            lock=lock,
        )

    def plan(
        self, device: DevicePlan | None, host_share: float = 1.0, prefetch: bool = True
    ) -> Plan:
        """`host_share` of the weights that the host needs are locked there."""

        def make(budget_bytes: int) -> Plan:
            return make_plan(
                self.model.spec,
                self.model.weights,
                self.workload,
                self.planned.hardware,
                budget_bytes=budget_bytes,
                base_bytes={Category.INTERPRETER: 0, Category.TOKENIZER: 0},
                prefetch=prefetch,
                device=device,
            )

        whole = make(ABUNDANT)
        weights = whole.parts[Category.LOCKED]
        return make(round(whole.total_bytes - (1 - host_share) * weights) + 16 * MiB)

    @contextmanager
    def run(
        self, device: DevicePlan | None, host_share: float = 1.0, prefetch: bool = True
    ) -> Iterator[LLM]:
        plan = self.plan(device, host_share, prefetch)
        planned = replace(self.planned, plan=plan, device=self.opened if device else None)
        with LLM.from_plan(self.model, planned) as llm:
            yield llm

    def tightest(self, prefill: Strategy, decode: Strategy) -> DevicePlan:
        """No layer locked, no cache kept."""
        with pytest.raises(BudgetError) as refused:
            self.device_plan(prefill, decode, vram=0, lock=False)
        least = int(re.findall(r"\((\d+) bytes\)", str(refused.value))[1])
        return self.device_plan(prefill, decode, vram=least, lock=False)

    def split(self, device_layers: int) -> Strategy:
        return split(self.layers, device_layers)
