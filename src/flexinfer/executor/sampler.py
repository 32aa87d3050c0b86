"""From logits to a token: penalties, then greedy, or temperature with top-k, top-p and min-p."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import UnionType

import numpy as np

from flexinfer.errors import FormatError, OptionError, check_type
from flexinfer.ops.base import Array

_KINDS: dict[str, type | UnionType] = {  # of the parameters that are not just any number
    "max_tokens": int,
    "top_k": int,
    "seed": int | None,
    "stop": tuple | list,
    "stop_token_ids": frozenset | set,
    "ignore_end": bool,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. `temperature` 0 is greedy, whatever the next three are; 0, 1
    and 0 keep every token there. `repetition_penalty` (arXiv 1909.05858) divides the positive and
    multiplies the negative logits of every token of the prompt and the answer; `presence_penalty`
    is subtracted for each token of the answer, `frequency_penalty` for each time it stands there,
    as OpenAI defines them. Raises OptionError for values out of range.
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
            check_type(field.name, getattr(self, field.name), _KINDS.get(field.name, float | int))
        for text in self.stop:
            check_type("a stop string", text, str)
        checks = (
            ("max_tokens", self.max_tokens, self.max_tokens >= 0, "0 or more"),
            ("temperature", self.temperature, 0 <= self.temperature < np.inf, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (all) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0 < self.repetition_penalty < np.inf,
                "above 0",
            ),
            ("presence_penalty", self.presence_penalty, abs(self.presence_penalty) <= 2, "-2 to 2"),
            (
                "frequency_penalty",
                self.frequency_penalty,
                abs(self.frequency_penalty) <= 2,
                "-2 to 2",
            ),
            ("seed", self.seed, self.seed is None or self.seed >= 0, "0 or more"),
        )
        for name, value, good, wanted in checks:
            if not good:
                raise OptionError(f"{name} is {value!r}; it must be {wanted}", "see SamplingParams")
        if any(not text for text in self.stop):
            raise OptionError("an empty stop string would end every text at once", "leave it out")


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
