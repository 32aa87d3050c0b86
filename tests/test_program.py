"""Sweeps that are recorded and replayed, beside the same calls made one by one: the same bits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine_tools import locking
from factory import VOCAB_SIZE, make_gguf
from flexinfer import LLM
from flexinfer.executor.executor import MAX_RECORDED_TOKENS
from flexinfer.executor.kv_cache import Sequence as CachedSequence
from flexinfer.executor.model import Model, open_model
from flexinfer.ops.base import Span
from kernel_matrices import assert_same_bits

TEXTS = [[(31 * i + 7 * text + 1) % VOCAB_SIZE for i in range(140)] for text in range(3)]
# Everything that a layer may do: windows, caps and two norms more; norms of heads; biases; shared
# scales; norms of whole rows and no window; no rope in every fourth layer.
FAMILIES = ["gemma2", "gemma3", "qwen2", "qwen3", "granite", "olmo2", "smollm3", "phi3"]
Row = tuple[int, int]  # of which text, how many of its tokens


def opened(folder: Path, family: str = "llama", **options: object) -> Model:
    path = folder / f"{family}.gguf"
    make_gguf(path, family, block_type="Q4_0", intermediate_size=512, **options)
    return open_model(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return opened(tmp_path_factory.mktemp("program"))


def sweeps(llm: LLM, steps: Sequence[Sequence[Row]], silent: Sequence[int] = ()) -> np.ndarray:
    """The logits after each step, which advances some of the texts; none after a `silent` one."""
    executor = llm.session.executor
    cached = [CachedSequence(llm.session.pools, len(text)) for text in TEXTS]
    found = []
    for number, rows in enumerate(steps):
        tokens: list[int] = []
        spans = []
        for text, count in rows:
            sequence = cached[text]
            start = len(sequence.tokens)
            sequence.reserve(start + count)
            spans.append(Span(len(tokens), count, start, sequence.tables))
            sequence.tokens += TEXTS[text][start : start + count]
            tokens += sequence.tokens[start:]
        logits = executor.sweep(tokens, spans, logits=number not in silent)
        assert (logits is None) == (number in silent)
        if logits is not None:
            found.append(logits.copy())
    for sequence in cached:
        sequence.truncate(0)
    return np.stack(found)


def both_ways(llm: LLM, steps: Sequence[Sequence[Row]], silent: Sequence[int] = ()) -> None:
    executor = llm.session.executor
    assert executor.recorded_tokens == MAX_RECORDED_TOKENS == 16
    replayed = sweeps(llm, steps, silent)
    executor.recorded_tokens = 0
    called = sweeps(llm, steps, silent)
    executor.recorded_tokens = MAX_RECORDED_TOKENS
    assert len(np.unique(called, axis=0)) == len(called)
    assert_same_bits(replayed, called)
    assert_same_bits(sweeps(llm, steps, silent), called)  # from the records of the first time


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("threads", "prefetch"), [(1, False), (2, True), (3, True)])
def test_the_same_bits_wherever_weights_are(
    model: Model, share: float, threads: int, prefetch: bool
) -> None:
    steps = [[(0, 17)], [(0, 1)], [(0, 1)], [(0, 2)], [(0, 16)], [(0, 1)]]
    with locking(model, share, ctx=40, threads=threads, prefetch=prefetch) as llm:
        assert bool(llm.plan.placement.requests) == (share < 1)
        both_ways(llm, steps, silent=(1, 4))


@pytest.mark.parametrize("policy", ["tensor", "layer", "ffn-first"])
def test_the_same_bits_by_every_policy(model: Model, policy: str) -> None:
    with locking(model, 0.4, ctx=40, policy=policy) as llm:
        both_ways(llm, [[(0, 3)], [(0, 1)], [(0, 1)]], silent=(1,))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_of_every_kind_of_layer(tmp_path: Path, family: str) -> None:
    with locking(opened(tmp_path, family), 0.5, ctx=40) as llm:
        both_ways(llm, [[(0, 16)], [(0, 14)], [(0, 1)], [(0, 1)]])


def test_the_same_bits_of_several_texts_in_a_sweep(model: Model) -> None:
    steps = [[(0, 5), (1, 7)], [(2, 16)], [(1, 1), (0, 1), (2, 1)], [(0, 1), (2, 2)], [(1, 3)]]
    with locking(model, 0.5, ctx=130) as llm:  # a page for each text
        both_ways(llm, steps)


def test_the_same_bits_when_windows_have_given_pages_back(tmp_path: Path) -> None:
    """A layer with a window then finds the third page where another has its first."""
    with locking(opened(tmp_path, "gemma3"), 0.5, ctx=140) as llm:
        both_ways(llm, [*[[(0, 32)]] * 3, [(0, 16)], [(0, 15)], [(0, 1)], [(0, 2)]])


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_replay_that_is_interrupted_leaves_the_next_one_right(
    model: Model, prefetch: bool
) -> None:
    with locking(model, 0.5, ctx=40, prefetch=prefetch) as llm:
        executor = llm.session.executor
        expected = sweeps(llm, [[(0, 3)], [(0, 1)]])
        for last in range(3):
            seen: list[int] = []

            def interrupt(layer: int, last: int = last, seen: list[int] = seen) -> None:
                seen.append(layer)
                if layer == last:
                    raise KeyboardInterrupt

            sequence = CachedSequence(llm.session.pools, 40)
            sequence.reserve(3)
            span = Span(0, 3, 0, sequence.tables)
            with pytest.raises(KeyboardInterrupt):
                executor.sweep(TEXTS[0][:3], (span,), on_layer=interrupt)
            assert seen == list(range(last + 1))
            sequence.truncate(0)
            assert_same_bits(sweeps(llm, [[(0, 3)], [(0, 1)]]), expected)


def test_scoring_between_replays(model: Model) -> None:
    with locking(model, 0.5, ctx=130) as llm:
        expected = sweeps(llm, [[(0, 3)], [(0, 1)]])
        scores = llm.session.engine.score(TEXTS[1][:12], 3)
        assert_same_bits(sweeps(llm, [[(0, 3)], [(0, 1)]]), expected)
        np.testing.assert_array_equal(llm.session.engine.score(TEXTS[1][:12], 3), scores)
