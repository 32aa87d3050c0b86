"""The sampler's choices against probabilities written out in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import FormatError, OptionError
from flexinfer.executor.sampler import Sampler, SamplingParams, nucleus

DRAWS = 20_000


def probabilities(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> dict[int, float]:
    """By token: the k likeliest, softened, then the fewest of them that make up p."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or None]
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order]
    total = sum(weights)
    kept, mass = [], 0.0
    for weight in weights:
        if mass >= top_p:
            break
        kept.append(weight)
        mass += weight / total
    return {i: weight / sum(kept) for i, weight in zip(order, kept, strict=False)}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (3.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.7), (2.0, 5, 0.8)],
)
def test_tokens_come_as_often_as_is_probable(temperature: float, top_k: int, top_p: float) -> None:
    logits = [0.5, 2.0, -1.0, 1.75, 0.0, 1.0, -4.0, 1.5]
    expected = probabilities(logits, temperature, top_k, top_p)
    sampler = Sampler(
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=11), len(logits)
    )
    array = np.array(logits, np.float32)
    counts = Counter(sampler.sample(array) for _ in range(DRAWS))
    assert set(counts) <= set(expected)
    for token, probability in expected.items():
        sigma = math.sqrt(DRAWS * probability * (1 - probability))
        assert abs(counts[token] - DRAWS * probability) <= 5 * sigma + 1


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 1 << 40),
)
def test_only_what_may_come_comes(
    logits: list[float], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    """Tokens that are as likely as the last one kept may stand for it."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    token = Sampler(params, len(logits)).sample(np.array(logits, np.float32))
    allowed = probabilities(logits, temperature, top_k, top_p)
    least = min(logits[i] for i in allowed)
    assert logits[token] >= least - 1e-5 * temperature


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4)])
def test_the_fewest_tokens_that_make_up_p_are_kept(top_p: float, kept: int) -> None:
    logits = np.log(np.array([0.2, 0.4, 0.1, 0.3], np.float32))
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p, seed=3), 4)
    assert {sampler.sample(logits) for _ in range(500)} == set([1, 3, 0, 2][:kept])


@settings(max_examples=60)
@given(
    size=st.sampled_from([1, 7, 500, 20_000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 3.0, 8.0, 60.0]),
    top_p=st.floats(1e-9, 1, exclude_max=True),
    seed=st.integers(0, 99),
)
def test_the_nucleus_is_that_of_sorting_everything(
    size: int, spread: float, top_p: float, seed: int
) -> None:
    logits = np.round(np.random.default_rng(seed).normal(0, spread, size), 2)  # some are equal
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    assert nucleus(weights, top_p).tolist() == order[before < top_p].tolist()


def test_padding_of_the_vocabulary_is_never_chosen() -> None:
    logits = np.array([0, 1, 2, 90, 99], np.float32)
    for params in (
        SamplingParams(),
        SamplingParams(temperature=5.0, seed=1),
        SamplingParams(temperature=5.0, top_k=4, top_p=0.99, seed=1),
    ):
        sampler = Sampler(params, 3)
        assert {sampler.sample(logits) for _ in range(50)} <= {0, 1, 2}


def test_of_equal_logits_the_first_is_the_greedy_one() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    assert Sampler(SamplingParams(temperature=0, top_p=0.5, seed=5), 4).sample(logits) == 1
    assert Sampler(SamplingParams(temperature=9.0, top_k=1), 4).sample(logits) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits", [[0, math.nan, 5], [math.nan] * 3, [1, math.inf, 2], [-math.inf] * 3]
)
def test_what_is_no_number_is_no_token(logits: list[float], temperature: float) -> None:
    with pytest.raises(FormatError, match="the model: a result is") as refused:
        Sampler(SamplingParams(temperature=temperature), 3).sample(np.array(logits, np.float32))
    assert refused.value.hint


def test_a_token_that_may_never_come_does_no_harm() -> None:
    logits = np.array([-math.inf, 1, 2], np.float32)
    for params in (SamplingParams(), SamplingParams(temperature=1e-320, top_p=0.9)):
        assert Sampler(params, 3).sample(logits) == 2


def test_a_stop_string_that_no_text_can_hold_is_refused() -> None:
    with pytest.raises(OptionError, match="lone surrogate"):
        SamplingParams(stop=("é\udcff",))
    assert SamplingParams(stop=("é", "😀")).stop == ("é", "😀")
