"""The headline: a real model writes the same tokens at every budget, thread count and prefetch."""

from itertools import cycle
from pathlib import Path

import pytest
from engine_tools import locking

from flexinfer import SamplingParams
from flexinfer.executor.model import open_model

PROMPT = "The quick brown fox jumps over the lazy dog. In 1999 the capital of France was"
BUDGETS = 10
SETTINGS = [(1, True), (2, True), (3, True), (1, False), (2, False), (3, False)]


@pytest.mark.parametrize("name", ["smollm_path", "gemma_path"])
def test_same_tokens_at_ten_budgets(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(name)
    model = open_model(path)
    settings = cycle(SETTINGS)
    seen = set()
    for step in range(BUDGETS):
        share = step / (BUDGETS - 1)  # of the weights that are locked
        for _ in range(2):
            threads, prefetch = next(settings)
            with locking(model, share, ctx=64, threads=threads, prefetch=prefetch) as llm:
                assert bool(llm.plan.placement.requests) == (share < 1)
                done = llm.generate(PROMPT, SamplingParams(max_tokens=10))
                assert done.stats.sweeps == 10
            seen.add(done.token_ids)
    assert len(seen) == 1
