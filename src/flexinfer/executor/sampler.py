"""From logits to a token: greedy, or temperature with top-k and top-p, reproducible by seed."""

from dataclasses import dataclass

import numpy as np

from flexinfer.errors import FormatError, OptionError
from flexinfer.ops.base import Array


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. `temperature` 0 is greedy, whatever `top_k` and `top_p` are; 0 and
    1 keep every token there. Raises OptionError for values out of range.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_end: bool = False  # benchmarks: go on after end tokens

    def __post_init__(self) -> None:
        checks = (
            ("max_tokens", self.max_tokens, self.max_tokens >= 0, "0 or more"),
            ("temperature", self.temperature, 0 <= self.temperature < np.inf, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (all) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("seed", self.seed, self.seed is None or self.seed >= 0, "0 or more"),
            ("stop", self.stop, not isinstance(self.stop, str), "a tuple of texts"),
        )
        for name, value, good, wanted in checks:
            if not good:
                raise OptionError(f"{name} is {value!r}; it must be {wanted}", "see SamplingParams")
        if any(not text for text in self.stop):
            raise OptionError("an empty stop string would end every text at once", "leave it out")


def not_finite(value: float) -> FormatError:
    """What is said of a model whose results are no numbers."""
    return FormatError(
        f"the model's result is {value}: its weights hold values that are damaged or out of range",
        "download the file again; if it stays so, its conversion went wrong",
    )


class Sampler:
    """Samples for one request; `vocab_size` bounds what may be chosen (padding ids are never)."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self._params = params
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(params.seed)

    def sample(self, logits: Array) -> int:
        """A token id from float32 logits [vocabulary]: top-k, then temperature, then top-p.

        Raises FormatError where the likeliest logit is no finite number (argmax finds any NaN).
        """
        logits = logits[: self._vocab_size]
        params = self._params
        likeliest = int(np.argmax(logits))
        if not np.isfinite(logits[likeliest]):
            raise not_finite(float(logits[likeliest]))
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
            order = np.argsort(-weights, kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            kept = order[before < params.top_p]  # the most probable always stays
            weights = weights[kept] / weights[kept].sum()
            ids = kept if ids is None else ids[kept]
        choice = int(np.searchsorted(np.cumsum(weights), self._random.random(), side="right"))
        choice = min(choice, len(weights) - 1)
        return choice if ids is None else int(ids[choice])
