"""Sweeps that are recorded and replayed, beside the same calls made one by one: the same bits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_tools import locking
from factory import VOCAB_SIZE, make_gguf
from kernel_matrices import assert_same_bits

from flexinfer import LLM, _kernels
from flexinfer.executor.executor import MAX_RECORDED_TOKENS
from flexinfer.executor.kv_cache import Sequence as CachedSequence
from flexinfer.executor.model import Model, open_model
from flexinfer.ops.base import Span

TEXTS = [[(31 * i + 7 * text + 1) % VOCAB_SIZE for i in range(90)] for text in range(3)]
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
    cached = [CachedSequence(llm.session.pools, 40) for _ in TEXTS]
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


class TestProgram:
    """The native records by themselves."""

    ctx = _kernels.Context(1)
    none = np.zeros(0, np.int64)

    def test_nothing_happens_before_the_replay(self) -> None:
        x = np.full((2, 32), 3, np.float32)
        program = _kernels.Program(self.ctx, 2)
        _kernels.scale(program, x, 2.0)
        _kernels.scale(program, x, 10.0)
        assert len(program) == 2 and x[0, 0] == 3
        program.run(1, 2, _kernels.Spans(), self.none)
        assert x[0, 0] == 30
        program.run(0, 2, _kernels.Spans(), self.none)
        assert x[0, 0] == 600

    def test_a_call_that_is_wrong_is_refused_when_recorded(self) -> None:
        x = np.ones((2, 32), np.float32)
        program = _kernels.Program(self.ctx, 2)
        with pytest.raises(ValueError, match="size of weight is 31, must be 32"):
            _kernels.rms_norm(program, x, np.ones(31, np.float32), 0.0, x)
        with pytest.raises(ValueError, match="no kernel for block type 99"):
            _kernels.linear(program, 99, True, 64, 16, 32, x, None, x, 0, 0, None)
        with pytest.raises(ValueError, match="must not be negative"):
            _kernels.linear_streamed(program, 0, -1, 0, 16, 32, x, None, x, 0, 0, None)
        with pytest.raises(ValueError, match="rows of k is 1, must be 2"):
            program.attention(x[:1], x[:1], x, x, 64, 8192, 0, 1, 1, 32, 2, 1.0)
        assert len(program) == 0

    def test_a_replay_that_does_not_fit_the_records_is_refused(self) -> None:
        x = np.ones((2, 32), np.float32)
        table = np.zeros(1, np.int32)
        program = _kernels.Program(self.ctx, 2)
        _kernels.linear_streamed(program, 0, 3, 0, 16, 32, x, None, x, 0, 0, None)
        pages = np.zeros(2 * 32 * 64, np.uint16)
        place = (pages.ctypes.data, pages.nbytes)
        program.attention(x, x, x, x.copy(), *place, 1, 1, 1, 32, 2, 1.0)
        spans, addresses = _kernels.Spans(), np.full(4, x.ctypes.data, np.int64)
        spans.add(0, 2, 0, [table, table])
        for first, last in ((-1, 1), (1, 0), (0, 3)):
            with pytest.raises(ValueError, match="must be at least"):
                program.run(first, last, spans, addresses)
        with pytest.raises(ValueError, match="size of addresses is 3, must be at least 4"):
            program.run(0, 2, spans, addresses[:3])
        with pytest.raises(ValueError, match="page number"):
            spans.add(0, 1, 0, [table - 1])
        with pytest.raises(ValueError, match="size of table is 1, must be at least 2"):
            spans.add(0, 1, 64, [table])
        for first, tables, message in (
            (1, [table, table], "tokens of the program is 2, must be at least 3"),
            (0, [table], "tables of a span is 1, must be at least 2"),
        ):
            wrong = _kernels.Spans()
            wrong.add(first, 2, 0, tables)
            with pytest.raises(ValueError, match=message):
                program.run(0, 2, wrong, addresses)
        program.run(0, 0, spans, addresses)
