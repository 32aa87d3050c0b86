"""Pages of windows: let go of when the window has passed, used again, and never missed."""

from pathlib import Path

import numpy as np
import pytest

from engine_tools import opened, sweep_logits
from factory import make_gguf
from flexinfer import SamplingParams
from flexinfer.executor.kv_cache import PagePool, Sequence
from flexinfer.executor.model import Model, open_model
from flexinfer.memory.ledger import Category

WINDOW = 24
TOKENS = [1] + [(31 * i * i + 7 * i) % 300 + 4 for i in range(399)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("kv") / "gemma.gguf"
    make_gguf(path, "gemma3", block_type="Q8_0", intermediate_size=512, sliding_window=WINDOW)
    return open_model(path)


def test_a_window_takes_pages_for_itself_and_a_sweep(model: Model) -> None:
    with opened(model, prompt_tokens=16, ctx=400) as narrow, opened(model, 400, 1) as wide:
        assert narrow.plan.sweep_tokens == 16 and wide.plan.sweep_tokens == 400
        page = narrow.plan.parts[Category.KV_CACHE] // (6 * 2 + 7)
        # six layers of two pages, one of the seven that 400 positions take; else seven each
        assert narrow.plan.parts[Category.KV_CACHE] == (6 * 2 + 1 * 7) * page
        assert wide.plan.parts[Category.KV_CACHE] == 7 * 7 * page


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_logits_do_not_depend_on_pages_used_again(model: Model, kv_type: str) -> None:
    ends = list(range(16, 401, 16))
    with opened(model, prompt_tokens=400, new_tokens=1, kv_type=kv_type) as wide:
        expected = sweep_logits(wide, TOKENS, ends)
    with opened(model, prompt_tokens=16, ctx=400, kv_type=kv_type) as narrow:
        assert np.array_equal(sweep_logits(narrow, TOKENS, ends), expected)
        single = sweep_logits(narrow, TOKENS[:200], range(1, 201))
        assert np.array_equal(single[15::16], expected[: 200 // 16])


def test_a_shared_beginning_that_a_window_has_left_is_computed_again(model: Model) -> None:
    params = SamplingParams(max_tokens=4, ignore_end=True)
    with opened(model, prompt_tokens=16, ctx=400) as llm:
        fresh = llm.generate(TOKENS[:100], params).token_ids
        llm.generate(TOKENS[:390], params)
        assert llm.generate(TOKENS[:100], params).token_ids == fresh
        assert llm.stats.sweeps == 7 + 3  # all of the prompt again
        longer = llm.generate(TOKENS[:101], params)
        assert longer.stats.sweeps == 1 + 3  # only what is new: the window still holds the rest


def test_a_sequence_gives_back_every_page() -> None:
    pools = (PagePool(7), PagePool(3, window_tokens=64))
    sequence = Sequence(pools, 448)
    for _ in range(3):  # a page that is not given back is missed in the next round
        for end in range(32, 449, 32):
            sequence.reserve(end)
            sequence.tokens += range(32)
        assert sequence.truncate(440) == 440
        assert sequence.truncate(100) == 0  # the window has let go of positions 37..
