"""Models opened under a budget, for tests of the whole machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from flexinfer import LLM
from flexinfer.executor.kv_cache import Sequence as CachedSequence
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import plan_run
from flexinfer.memory.ledger import Category
from flexinfer.ops.base import Span
from flexinfer.planner.planner import Plan, make_plan
from flexinfer.units import MiB


@contextmanager
def opened(
    model: Path | Model, prompt_tokens: int = 64, new_tokens: int = 64, **options: object
) -> Iterator[LLM]:
    """An LLM planned for the workload; options are those of the command line."""
    if isinstance(model, Path):
        model = open_model(model)
    planned = plan_run(model, Options(**options), prompt_tokens, new_tokens)
    with LLM.from_plan(model, planned) as llm:
        yield llm


@contextmanager
def locking(
    model: Model,
    share: float,
    ctx: int = 160,
    threads: int = 2,
    prefetch: bool = True,
    policy: str = "rows",
    prefetch_window: int | None = None,
    io_threads: int | None = None,
    kv_type: str = "f16",
) -> Iterator[LLM]:
    """An LLM of which `share` of the weights is locked: the budget counts from 0, not from this
    process, whose size differs from test to test.
    """
    options = Options(ctx=ctx, threads=threads, prefetch=prefetch, kv_type=kv_type)
    planned = plan_run(model, options, 32, 32)

    def plan(budget_bytes: int, **reading: int | None) -> Plan:
        return make_plan(
            model.spec,
            model.weights,
            planned.plan.workload,
            planned.hardware,
            budget_bytes=budget_bytes,
            base_bytes={Category.INTERPRETER: 0, Category.TOKENIZER: 0},
            prefetch=prefetch,
            policy=policy,
            kv_type=kv_type,
            **reading,
        )

    whole = plan(1 << 40)
    weights = whole.parts[Category.LOCKED]
    reading = {"prefetch_window": prefetch_window, "io_threads": io_threads}
    larger = max(prefetch_window or 0, io_threads or 0) * whole.ring.slot_bytes
    budget = round(whole.total_bytes - (1 - share) * weights) + 16 * MiB + larger
    with LLM.from_plan(model, replace(planned, plan=plan(budget, **reading))) as llm:
        yield llm


def sweep_logits(llm: LLM, tokens: Sequence[int], cuts: Sequence[int]) -> np.ndarray:
    """Logits after each of the sweeps that `cuts` (the ends of the chunks) divide the tokens
    into.
    """
    sequence = CachedSequence(llm.session.pools, len(tokens))
    rows, start = [], 0
    for end in cuts:
        sequence.reserve(end)
        span = Span(0, end - start, start, sequence.tables)
        rows.append(llm.session.executor.sweep(tokens[start:end], (span,)).copy())
        sequence.tokens += tokens[start:end]
        start = end
    sequence.truncate(0)
    return np.stack(rows)
