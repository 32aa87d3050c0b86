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
WINDOWS = [(2, 1), (3, 3), (5, 2), (11, 4), (40, 1), (None, 5)]  # slots, and threads that read


@pytest.mark.parametrize(
    ("name", "kv_type"),
    [
        ("smollm_path", "f16"),
        ("gemma_path", "f16"),
        ("smollm_path", "q8_0"),
        ("gemma_path", "q8_0"),
    ],
)
def test_same_tokens_at_ten_budgets(
    name: str, kv_type: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    model = open_model(path)
    settings = cycle(SETTINGS)
    seen = set()
    for step in range(BUDGETS):
        share = step / (BUDGETS - 1)  # of the weights that are locked
        for _ in range(2):
            threads, prefetch = next(settings)
            with locking(model, share, 64, threads, prefetch, kv_type=kv_type) as llm:
                assert bool(llm.plan.placement.requests) == (share < 1)
                done = llm.generate(PROMPT, SamplingParams(max_tokens=10))
                assert done.stats.sweeps == 10
            seen.add(done.token_ids)
    assert len(seen) == 1


@pytest.mark.parametrize("policy", ["rows", "layer"])
def test_same_tokens_in_every_ring(policy: str, smollm_path: Path) -> None:
    """Two slots are the least: two reads are in use at once."""
    model = open_model(smollm_path)
    seen = set()
    for share in (0.0, 0.45):
        for slots, threads in WINDOWS:
            ring = {"prefetch_window": slots, "io_threads": threads}
            with locking(model, share, ctx=64, policy=policy, **ring) as llm:
                assert llm.plan.placement.requests and llm.plan.io_threads == threads
                assert slots in (None, llm.plan.ring.slots)
                seen.add(llm.generate(PROMPT, SamplingParams(max_tokens=6)).token_ids)
    with locking(model, 1, ctx=64) as llm:
        seen.add(llm.generate(PROMPT, SamplingParams(max_tokens=6)).token_ids)
    assert len(seen) == 1
