"""The Python API: texts, ids, lists, conversations, and the budget that nobody stated."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import flexinfer
from flexinfer import (
    LLM,
    BudgetError,
    Completion,
    FormatError,
    OptionError,
    PromptError,
    SamplingParams,
)
from flexinfer.executor import setup
from flexinfer.memory.budget import Availability, default_budget, resident_bytes
from flexinfer.units import GiB, MiB

FEW = SamplingParams(max_tokens=6)
QUESTION = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def llm(smollm_path: Path) -> Iterator[LLM]:
    with LLM(smollm_path, ram="2GiB", ctx=256) as llm:
        yield llm


def test_text_ids_and_lists_are_continued_alike(llm: LLM) -> None:
    text = "The capital of France is"
    done = llm.generate(text, FEW)
    assert isinstance(done, Completion) and "Paris" in done.text
    assert llm.generate(llm.encode(text), FEW).token_ids == done.token_ids
    several = llm.generate([text, "One, two, three,", text], FEW)
    assert [c.token_ids for c in several] == [
        done.token_ids,
        several[1].token_ids,
        done.token_ids,
    ]
    assert "".join(chunk.text for chunk in llm.stream(text, FEW)) == done.text
    assert llm.stats.prompt_tokens == len(llm.encode(text))


def test_a_conversation_is_put_by_the_models_template(llm: LLM) -> None:
    answer = llm.chat(QUESTION, FEW)
    assert "Hello" in answer.text
    prompt = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    prompt += "trained by Hugging Face<|im_end|>\n"
    prompt += "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
    assert llm.generate(prompt, FEW).token_ids == answer.token_ids
    more = [*QUESTION, {"role": "assistant", "content": answer.text}, *QUESTION]
    assert llm.chat(more, FEW).text


def test_what_a_template_cannot_render_is_an_error_of_the_request(llm: LLM) -> None:
    with pytest.raises(PromptError, match="chat template") as caught:
        llm.chat([{"role": "user"}], FEW)
    assert caught.value.hint
    assert llm.chat(QUESTION, FEW).text


def test_a_prompt_too_long_is_refused_before_any_work(llm: LLM) -> None:
    sweeps = llm.session.executor.sweeps
    with pytest.raises(PromptError, match=r"the prompt has \d+ tokens, the context 256"):
        llm.generate("word " * 400, FEW)
    with pytest.raises(PromptError, match="empty"):
        llm.generate("", FEW)
    with pytest.raises(PromptError, match="empty"):
        llm.generate([], FEW)
    assert llm.session.executor.sweeps == sweeps


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": -1},
        {"seed": -1},
        {"temperature": float("nan")},
        {"max_tokens": "5"},
        {"max_tokens": 5.0},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": True},
        {"seed": 1.5},
        {"stop": "text"},
        {"stop": ("a", 5)},
        {"stop_token_ids": 2},
        {"ignore_end": 1},
    ],
)
def test_parameters_that_cannot_be(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError) as caught:
        SamplingParams(**bad)
    assert caught.value.hint


def test_one_model_after_the_other_has_the_memory_of_the_first(smollm_path: Path) -> None:
    before = resident_bytes()
    for _ in range(3):
        llm = LLM(smollm_path, ram="2GiB", ctx=64)
        locked = llm.plan.placement.locked_bytes
        assert resident_bytes() - before > locked
        assert llm.generate("Hello", FEW).token_ids
        llm.close()
        llm.close()  # does no harm
        assert resident_bytes() - before < locked // 2


def test_the_default_budget_is_what_the_machine_can_spare(
    smollm_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Availability(8 * GiB, "host memory")
    monkeypatch.setattr(setup, "available_memory", lambda: spare)
    with LLM(smollm_path) as llm:
        assert llm.plan.budget_bytes == default_budget(spare) == 8 * GiB - 8 * GiB // 20
        assert llm.plan.workload.context_tokens == 4096  # as for a chat
        assert not llm.plan.placement.requests


def test_a_default_budget_that_is_too_small_is_refused(
    smollm_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Availability(40 * MiB, "control group /a")
    monkeypatch.setattr(setup, "available_memory", lambda: spare)
    with pytest.raises(BudgetError, match=r"a budget of 30 MiB .* below the minimum"):
        LLM(smollm_path)


def test_more_than_there_is_takes_force(smollm_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Availability(1 * GiB, "control group /a")
    monkeypatch.setattr(setup, "available_memory", lambda: spare)
    with pytest.raises(BudgetError, match=r"1.5 GiB .* more than the 1 GiB .* control group /a"):
        LLM(smollm_path, ram="1.5GiB", ctx=64)
    with LLM(smollm_path, ram="1.5GiB", ctx=64, force=True) as llm:
        assert llm.plan.budget_bytes == 1.5 * GiB


def test_faults_of_the_user_are_of_one_kind(tmp_path: Path, smollm_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        LLM(tmp_path / "absent.gguf")
    with pytest.raises(OptionError, match="not a size"):
        LLM(smollm_path, ram="lots")
    for name in ("BudgetError", "FormatError", "OptionError", "PromptError", "ReadError"):
        assert issubclass(getattr(flexinfer, name), flexinfer.FlexInferError)


def test_the_ring_may_be_asked_for(smollm_path: Path) -> None:
    ram = resident_bytes() + 80 * MiB  # less than the weights
    with LLM(smollm_path, ram, 64, prefetch_window=5, io_threads=2) as llm:
        assert (llm.plan.ring.slots, llm.plan.io_threads) == (5, 2)
        assert llm.plan.placement.requests
        assert llm.generate("The capital of France is", FEW).token_ids
    with pytest.raises(OptionError, match="--io-threads is 0"):
        LLM(smollm_path, ram, io_threads=0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ram", 1.5),
        ("ram", True),
        ("ctx", "64"),
        ("threads", 2.0),
        ("kv_type", None),
        ("policy", 5),
        ("prefetch", "no"),
        ("io_threads", "2"),
        ("force", 1),
    ],
)
def test_options_of_another_type(option: str, value: object, smollm_path: Path) -> None:
    with pytest.raises(OptionError, match=f"^{option} is .*, of type") as caught:
        LLM(smollm_path, **{"ram": "2GiB", "ctx": 64, option: value})
    assert caught.value.hint


def test_force_takes_effect_on_a_budget_that_is_stated(smollm_path: Path) -> None:
    with pytest.raises(OptionError, match="--force takes effect only on a --ram"):
        LLM(smollm_path, ctx=64, force=True)


def test_prompts_of_another_type(llm: LLM) -> None:
    for prompt in (5, None, [1.5], ["a", 5], [None], {"role": "user"}, [b"x"]):
        with pytest.raises(PromptError, match="is no prompt") as caught:
            llm.generate(prompt, FEW)
        assert caught.value.hint
    for messages in ("Say hello.", ["Say hello."], [5]):
        with pytest.raises(PromptError, match="is no conversation"):
            llm.chat(messages, FEW)
    with pytest.raises(OptionError, match="params is "):
        llm.generate("a", {"max_tokens": 5})
    with pytest.raises(FormatError, match="5 is no path"):
        LLM(5)


def test_a_closed_stream_computes_nothing_more(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(max_tokens=200))
    next(stream)
    started = time.perf_counter()
    stream.close()
    assert time.perf_counter() - started < 1
    assert llm.stats.new_tokens == 1
