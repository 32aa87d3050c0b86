"""The engine on a tiny model whose matrices stream: endings, sampling, interruptions, the cache."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engine_tools import locking, opened
from factory import VOCAB_SIZE, make_gguf
from flexinfer import LLM, FlexInferError, PromptError, ReadError, SamplingParams
from flexinfer.errors import OptionError, UnsupportedError
from flexinfer.executor.model import Model, open_model
from flexinfer.tokenizer import load_tokenizer

PROMPT = [1, *range(40, 80)]
ENDLESS = SamplingParams(max_tokens=400, ignore_end=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    make_gguf(path, "llama", block_type="Q4_0", intermediate_size=512)
    return open_model(path)


@pytest.fixture(scope="module")
def llm(model: Model) -> Iterator[LLM]:
    with opened(model, ctx=160) as llm:
        yield llm


def tokens(llm: LLM, count: int = 12, prompt: list[int] = PROMPT, **params: object) -> list[int]:
    done = llm.generate(prompt, SamplingParams(max_tokens=count, ignore_end=True, **params))
    return list(done.token_ids)


def test_max_tokens_and_length(llm: LLM) -> None:
    done = llm.generate(PROMPT, SamplingParams(max_tokens=5, ignore_end=True))
    assert (len(done.token_ids), done.finish_reason) == (5, "length")
    assert done.stats.new_tokens == 5 and done.stats.prompt_tokens == len(PROMPT)
    assert done.stats.tpot_s and done.stats.tpot_s > 0


def test_max_tokens_zero_does_nothing(llm: LLM) -> None:
    sweeps = llm.session.executor.sweeps
    done = llm.generate(PROMPT, SamplingParams(max_tokens=0))
    assert (done.token_ids, done.text, done.finish_reason) == ((), "", "length")
    assert llm.session.executor.sweeps == sweeps


def test_the_context_ends_it(llm: LLM) -> None:
    done = llm.generate(PROMPT, SamplingParams(max_tokens=10_000, ignore_end=True))
    assert len(PROMPT) + len(done.token_ids) == 160 + 1  # the last one needs no place in the cache
    assert done.finish_reason == "length"


def test_a_prompt_longer_than_the_context_names_both_numbers(llm: LLM) -> None:
    with pytest.raises(PromptError, match=r"161 tokens, the context 160"):
        llm.stream([1] * 161)
    assert len(tokens(llm, 1, [1] * 160)) == 1


def test_an_empty_prompt_and_foreign_ids(llm: LLM) -> None:
    with pytest.raises(PromptError, match="empty"):
        llm.stream([])
    with pytest.raises(PromptError, match=f"{VOCAB_SIZE}"):
        llm.stream([VOCAB_SIZE])
    assert len(tokens(llm, 3, [1])) == 3  # only a special token


def test_without_a_tokenizer_ids_still_work(model: Model, llm: LLM) -> None:
    with opened(replace(model, tokenizer=load_tokenizer({})), ctx=160) as bare:
        done = bare.generate(PROMPT, SamplingParams(max_tokens=12, stop=("a",)))
        assert (list(done.token_ids), done.text) == (tokens(llm), "")
        with pytest.raises(UnsupportedError, match="no tokenizer"):
            bare.generate("text")


def test_end_tokens_stop_and_are_not_shown(llm: LLM) -> None:
    all_tokens = tokens(llm)
    params = SamplingParams(max_tokens=12, stop_token_ids=frozenset({all_tokens[4]}))
    done = llm.generate(PROMPT, params)
    first = all_tokens.index(all_tokens[4])
    assert list(done.token_ids) == all_tokens[: first + 1]
    assert done.finish_reason == "stop"
    assert done.text == llm.model.tokenizer.decode(all_tokens[:first], continuing=True)


def test_stop_strings_cut_the_text_even_across_tokens(llm: LLM) -> None:
    whole = llm.generate(PROMPT, SamplingParams(max_tokens=12, ignore_end=True)).text
    stop = whole[5:9]
    done = llm.generate(PROMPT, SamplingParams(max_tokens=12, ignore_end=True, stop=(stop,)))
    assert done.text == whole[: whole.index(stop)]
    assert done.finish_reason == "stop"
    never = SamplingParams(max_tokens=12, ignore_end=True, stop=(whole[-2:] + "\0",))
    assert llm.generate(PROMPT, never).text == whole  # what was held back comes at the end


def test_sampling_is_reproducible_by_seed(llm: LLM) -> None:
    first = tokens(llm, temperature=1.0, seed=7)
    assert tokens(llm, temperature=1.0, seed=7) == first
    assert tokens(llm, temperature=1.0, seed=8) != first
    greedy = tokens(llm)
    assert tokens(llm, temperature=0, top_p=0.5, seed=3) == greedy
    assert tokens(llm, temperature=1.0, top_k=1) == greedy
    assert tokens(llm, temperature=1.0, top_p=1e-9) == greedy
    assert tokens(llm, temperature=1e-6) == greedy


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"stop": ("",)}]
)
def test_impossible_parameters_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        SamplingParams(**bad)


def test_a_shared_beginning_is_not_computed_again(llm: LLM, model: Model) -> None:
    tokens(llm)
    longer = [*PROMPT, 90, 91, 92]
    warm = tokens(llm, prompt=longer)
    with opened(model, ctx=160) as fresh:
        assert tokens(fresh, prompt=longer) == warm


def test_a_long_prompt_takes_several_sweeps_and_changes_nothing(model: Model, llm: LLM) -> None:
    prompt = [1 + (7 * i) % 300 for i in range(100)]
    expected = tokens(llm, prompt=prompt)
    with opened(model, prompt_tokens=16, ctx=160) as short:
        assert short.plan.sweep_tokens == 16
        assert tokens(short, prompt=prompt) == expected
        assert short.stats.sweeps == 7 + 11


@pytest.mark.parametrize("prefetch", [True, False])
def test_an_interrupted_sweep_leaves_the_next_request_right(model: Model, prefetch: bool) -> None:
    with locking(model, 0.5, prefetch=prefetch) as llm:
        assert llm.plan.placement.requests
        expected = tokens(llm)
        for at in (0, 1, 2):

            def interrupt(phase: str, done: int, total: int, at: int = at) -> None:
                if done >= at * total // 3:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                next(llm.stream([1, *range(100, 140)], None, interrupt))
            assert tokens(llm) == expected


def test_a_closed_stream_stops_the_work(llm: LLM) -> None:
    expected = tokens(llm)
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=12, ignore_end=True))
    assert [next(stream).token_id for _ in range(3)] == expected[:3]
    stream.close()
    assert llm.stats.new_tokens == 3
    assert tokens(llm) == expected


def test_a_truncated_file_is_an_error_of_the_request(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    make_gguf(path, "llama", block_type="Q4_0", intermediate_size=512)
    model = open_model(path)
    with locking(model, 0.5) as llm:
        assert tokens(llm)
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ReadError, match=r"cut\.gguf"):
            tokens(llm, 200)


def test_the_same_tokens_at_any_budget_policy_thread_count_and_prefetch(
    model: Model, llm: LLM
) -> None:
    expected = tokens(llm)
    for policy in ("tensor", "layer", "attention-first", "ffn-first"):
        with locking(model, 0.5, policy=policy) as other:
            assert other.plan.placement.requests
            assert tokens(other) == expected
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        for threads, prefetch in ((1, True), (2, False), (3, True), (4, True)):
            with locking(model, share, threads=threads, prefetch=prefetch) as other:
                assert bool(other.plan.placement.requests) == (share < 1)
                assert tokens(other) == expected


def test_continuations_under_way_at_once_do_not_change_each_other(model: Model) -> None:
    prompts = [PROMPT, [1, *range(100, 120)], PROMPT[:20]]
    with locking(model, 0.5) as llm:
        expected = [tokens(llm, prompt=prompt) for prompt in prompts]
        params = SamplingParams(max_tokens=12, ignore_end=True)
        streams = [llm.stream(prompt, params) for prompt in prompts]
        steps = zip(*streams, strict=True)
        assert list(zip(*([c.token_id for c in step] for step in steps), strict=True)) == [
            tuple(one) for one in expected
        ]


def test_threads_wait_for_each_other(model: Model) -> None:
    prompts = [PROMPT, [1, *range(100, 120)]] * 3
    with locking(model, 0.5) as llm, ThreadPoolExecutor(4) as threads:
        expected = [tokens(llm, prompt=prompt) for prompt in prompts]
        assert list(threads.map(lambda prompt: tokens(llm, prompt=prompt), prompts)) == expected


def test_what_comes_after_close_is_refused_and_what_is_under_way_ends(model: Model) -> None:
    with locking(model, 0.5, ctx=512) as llm, ThreadPoolExecutor(1) as threads:
        stream = llm.stream(PROMPT)
        next(stream)
        done = llm.session.executor.sweeps
        working = threads.submit(lambda: llm.generate(PROMPT, ENDLESS))
        while llm.session.executor.sweeps < done + 3:
            time.sleep(0.001)
        llm.close()
        late = (lambda: next(stream), lambda: llm.generate(PROMPT), lambda: llm.stats)
        for use in (working.result, *late):
            with pytest.raises(FlexInferError, match="the model is closed"):
                use()


def test_a_progress_callback_can_neither_begin_a_request_nor_close(model: Model) -> None:
    with locking(model, 0.5) as llm:
        expected = tokens(llm)
        for use in (lambda: llm.generate(PROMPT), llm.close):
            with pytest.raises(FlexInferError, match="progress callback"):
                next(llm.stream([1, 2, 3], None, lambda *_, use=use: use()))
        assert tokens(llm) == expected


def test_a_fork_is_told_to_open_its_own(model: Model) -> None:
    with locking(model, 0.5) as llm:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                llm.generate(PROMPT)
            except FlexInferError as error:
                llm.close()
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        assert f"not in its fork {child}" in said
        assert tokens(llm)
