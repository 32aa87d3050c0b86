"""From logits to a token: penalties, then greedy, or temperature with top-k, top-p and min-p."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any

import numpy as np

from flexinfer.errors import FormatError, OptionError, check_type
from flexinfer.ops.base import Array


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a parameter may be."""

    kind: type | UnionType
    good: Callable[[Any], bool] = lambda value: True
    wanted: str = ""


_ANY_NUMBER = float | int
_RULES: dict[str, _Rule] = {
    "max_tokens": _Rule(int, lambda n: n >= 0, "0 or more"),
    "temperature": _Rule(_ANY_NUMBER, lambda t: 0 <= t < np.inf, "0 or more"),
    "top_k": _Rule(int, lambda k: k >= 0, "0 (all) or more"),
    "top_p": _Rule(_ANY_NUMBER, lambda p: 0 < p <= 1, "above 0, at most 1"),
    "min_p": _Rule(_ANY_NUMBER, lambda p: 0 <= p <= 1, "0 to 1"),
    # Beyond these, logits leave what float32 holds.
    "repetition_penalty": _Rule(_ANY_NUMBER, lambda x: 0.01 <= x <= 100, "0.01 to 100"),
    "presence_penalty": _Rule(_ANY_NUMBER, lambda x: abs(x) <= 2, "-2 to 2"),
    "frequency_penalty": _Rule(_ANY_NUMBER, lambda x: abs(x) <= 2, "-2 to 2"),
    "seed": _Rule(int | None, lambda n: n is None or n >= 0, "0 or more"),
    "stop": _Rule(tuple | list, all, "of texts that are not empty: those would end every answer"),
    "stop_token_ids": _Rule(frozenset | set),
    "ignore_end": _Rule(bool),
}


def check_parameter(field: str, value: object, shown: str, see: str) -> None:
    """Raises OptionError for what that field of SamplingParams may not be; it speaks of `shown`."""
    rule = _RULES[field]
    check_type(shown, value, rule.kind)
    if not rule.good(value):
        raise OptionError(f"{shown} is {value!r:.80}; it must be {rule.wanted}", f"see {see}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt, by at most `max_tokens` or to the end of the context. `temperature`
    0 is greedy, whatever the next three are; 0, 1 and 0 keep every token there.
    `repetition_penalty` (arXiv 1909.05858) divides the positive and multiplies the negative logits
    of every token of the prompt and the answer; `presence_penalty` is subtracted for each token of
    the answer, `frequency_penalty` for each time it stands there, as OpenAI defines them. Raises
    OptionError for values out of range.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0  # least probability, as a part of the likeliest token's
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_end: bool = False  # benchmarks: go on after end tokens

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_parameter(field.name, value, field.name, "SamplingParams")
        for text in self.stop:
            check_type("a stop string", text, str)
            if not text.isascii() and text.encode(errors="ignore").decode() != text:
                raise OptionError(
                    f"the stop string {text!a:.80} has a lone surrogate, and would never be found",
                    "decode it as UTF-8",
                )


def not_finite(model: str, value: float) -> FormatError:
    """What is said of a model, named by its file, whose results are no numbers."""
    return FormatError(
        f"{model}: a result is {value}: the weights hold values that are damaged or out of range",
        "download the file again; if it stays so, its conversion went wrong",
    )


def nucleus(weights: Array, top_p: float) -> Array:
    """The fewest of the likeliest ids whose weights reach `top_p`, likeliest first.

    Only what exceeds a threshold is sorted; the threshold falls until enough does. The same, bit
    for bit, as sorting all of them.
    """
    threshold = weights.max() / 16
    while True:
        likely = np.flatnonzero(weights >= threshold)
        order = likely[np.argsort(-weights[likely], kind="stable")]
        before = np.cumsum(weights[order]) - weights[order]
        kept = order[before < top_p]  # the most probable always stays
        if len(kept) < len(likely) or len(likely) == len(weights):
            return kept
        threshold = threshold / 16 if len(likely) < len(weights) / 8 else 0.0


class Sampler:
    """Samples for one request, whose prompt and choices so far the penalties are for.

    `vocab_size` bounds what may be chosen (padding ids are never); errors name `model`.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt: Sequence[int] = (),
        model: str = "the model",
    ) -> None:
        self._params = params
        self._model = model
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(params.seed)
        self._repeated = dict.fromkeys(token for token in prompt if token < vocab_size)
        self._counts: Counter[int] = Counter()

    def sample(self, logits: Array) -> int:
        """A token id from float32 logits [vocabulary]: penalties, top-k, temperature, top-p, min-p.

        The choice counts for the next call's penalties. Raises FormatError where the likeliest
        logit is no finite number (argmax finds any NaN).
        """
        token = self._choose(self._penalised(logits[: self._vocab_size]))
        self._repeated[token] = None
        self._counts[token] += 1
        return token

    def _penalised(self, logits: Array) -> Array:
        params = self._params
        if params.repetition_penalty != 1 and self._repeated:
            logits = logits.copy()
            ids = np.fromiter(self._repeated, np.int64)
            values, factor = logits[ids], np.float32(params.repetition_penalty)
            logits[ids] = np.where(values > 0, values / factor, values * factor)
        if (params.presence_penalty or params.frequency_penalty) and self._counts:
            logits = logits.copy()
            ids = np.fromiter(self._counts.keys(), np.int64)
            counts = np.fromiter(self._counts.values(), np.float32)
            logits[ids] -= params.presence_penalty + params.frequency_penalty * counts
        return logits

    def _choose(self, logits: Array) -> int:
        params = self._params
        likeliest = int(np.argmax(logits))
        if not np.isfinite(logits[likeliest]):
            raise not_finite(self._model, float(logits[likeliest]))
        if params.temperature == 0 or params.top_k == 1:
            return likeliest
        ids: Array | None = None
        if 0 < params.top_k < len(logits):
            ids = np.argpartition(-logits, params.top_k - 1)[: params.top_k]
            ids = ids[np.lexsort((ids, -logits[ids]))]
            logits = logits[ids]
        below = (logits - logits.max()).astype(np.float64)
        with np.errstate(over="ignore"):  # a temperature near 0 leaves the likeliest alone
            weights = np.exp(below / params.temperature)
        weights /= weights.sum()
        if params.top_p < 1:
            kept = nucleus(weights, params.top_p)
            weights = weights[kept] / weights[kept].sum()
            ids = kept if ids is None else ids[kept]
        if params.min_p > 0:
            kept = np.flatnonzero(weights >= params.min_p * weights.max())
            weights = weights[kept] / weights[kept].sum()
            ids = kept if ids is None else ids[kept]
        choice = int(np.searchsorted(np.cumsum(weights), self._random.random(), side="right"))
        choice = min(choice, len(weights) - 1)
        return choice if ids is None else int(ids[choice])
