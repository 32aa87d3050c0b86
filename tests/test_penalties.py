"""Penalties and min-p, each computed by hand."""

import numpy as np
import pytest

from flexinfer import SamplingParams
from flexinfer.errors import OptionError
from flexinfer.executor.sampler import Sampler

LOGITS = np.array([2.0, 1.0, -1.0, 0.5], np.float32)


def greedy(count: int, prompt: list[int], **params: float) -> list[int]:
    sampler = Sampler(SamplingParams(**params), 4, prompt)
    before = LOGITS.copy()
    chosen = [sampler.sample(LOGITS) for _ in range(count)]
    assert np.array_equal(LOGITS, before)  # the engine's buffer is not ours to change
    return chosen


def test_no_penalty_repeats() -> None:
    assert greedy(3, [0]) == [0, 0, 0]


def test_repetition_counts_the_prompt_and_what_was_chosen() -> None:
    # 2 / 3 = 0.67 < 1; then 1 / 3 = 0.33 < 0.67 stays, once each however often it stands there
    assert greedy(4, [0], repetition_penalty=3) == [1, 0, 0, 0]
    assert greedy(1, [2], repetition_penalty=3) == [0]
    assert greedy(1, [0, 1, 3], repetition_penalty=0.5) == [0]  # below 1 encourages


def test_repetition_makes_negative_logits_more_so() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=3), 2, [0])
    assert sampler.sample(np.array([-1.0, -2.0], np.float32)) == 1


def test_presence_counts_once_and_only_the_answer() -> None:
    assert greedy(4, [0, 0, 0], presence_penalty=1.2) == [0, 1, 0, 0]


def test_frequency_counts_every_time() -> None:
    # 2, then 2 - 0.8 = 1.2, then 0.4 against 1
    assert greedy(5, [1], frequency_penalty=0.8) == [0, 0, 1, 3, 0]


def test_min_p_leaves_out_what_is_far_below_the_likeliest() -> None:
    # exp(-1) = 0.37, exp(-1.5) = 0.22, exp(-3) = 0.05 of the likeliest
    for least, expected in ((0.04, {0, 1, 2, 3}), (0.1, {0, 1, 3}), (0.3, {0, 1}), (1.0, {0})):
        sampler = Sampler(SamplingParams(temperature=1.0, min_p=least, seed=1), 4)
        assert {sampler.sample(LOGITS) for _ in range(300)} == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"min_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("nan")},
    ],
)
def test_out_of_range_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        SamplingParams(**bad)
