"""The engine: requests in, tokens out. One sequence for now; a sweep carries any number of its
tokens.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flexinfer.errors import PromptError
from flexinfer.executor.executor import Executor
from flexinfer.executor.kv_cache import PagePool
from flexinfer.executor.kv_cache import Sequence as CachedSequence
from flexinfer.executor.sampler import Sampler, SamplingParams
from flexinfer.executor.stops import StopMatcher
from flexinfer.ops.base import Array, Span
from flexinfer.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]
Progress = Callable[[str, int, int], None]  # phase, done, of how many


@dataclass(frozen=True, slots=True)
class Chunk:
    """One step of a continuation: `text` may be empty while a character or a stop string is
    incomplete.
    """

    token_id: int | None
    text: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one request: seconds measured, and the sweeps it took."""

    prompt_tokens: int
    new_tokens: int = 0
    ttft_s: float = 0.0
    decode_s: float = 0.0  # from the first token to the last
    sweeps: int = 0

    @property
    def tpot_s(self) -> float | None:
        return self.decode_s / (self.new_tokens - 1) if self.new_tokens > 1 else None


class Engine:
    """Continues token sequences; keeps the cache of the last one, so that a chat's next turn
    starts warm.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        context_tokens: int,
        pools: Sequence[PagePool],
    ) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context_tokens = context_tokens
        self._sequence = CachedSequence(pools, context_tokens)
        self.timing = Timing(0)

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, progress: Progress | None = None
    ) -> Generator[Chunk, None, None]:
        """Continue `prompt`; the last chunk carries the finish reason. Closing the iterator stops
        the work.

        Raises PromptError at once for a prompt that is empty, too long, or not of this vocabulary.
        """
        self._check(prompt)
        return self._generate(list(prompt), params, progress)

    def score(self, tokens: Sequence[int], first: int) -> Array:
        """Log-probabilities of tokens[first + 1:] given what precedes each, from an empty
        cache, in one sweep.
        """
        self._check(tokens)
        if len(tokens) > self._executor.sweep_tokens:
            raise PromptError(
                f"{len(tokens)} tokens to score, {self._executor.sweep_tokens} fit in one sweep",
                "give more --ram or a smaller --ctx",
            )
        sequence = self._sequence
        sequence.truncate(0)
        sequence.reserve(len(tokens))
        span = Span(0, len(tokens), 0, sequence.tables)
        return self._executor.score(tokens, (span,), first)

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise PromptError(
                "the prompt is empty and the model adds no token of its own", "give some text"
            )
        if len(prompt) > self._context_tokens:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens, the context {self._context_tokens}",
                "give a larger --ctx or a shorter prompt",
            )
        bad = next((t for t in prompt if not 0 <= t < self._vocab_size), None)
        if bad is not None:
            raise PromptError(
                f"token id {bad} is not in the vocabulary of {self._vocab_size}",
                "were the ids made with the tokenizer of another model?",
            )

    def _generate(
        self, prompt: list[int], params: SamplingParams, progress: Progress | None
    ) -> Generator[Chunk, None, None]:
        start = time.perf_counter()
        sweeps = self._executor.sweeps
        self.timing = timing = Timing(len(prompt))
        limit = min(params.max_tokens, self._context_tokens - len(prompt) + 1)
        if limit <= 0:
            yield Chunk(None, "", "length")
            return
        sampler = Sampler(params, self._sampled_vocabulary(), prompt)
        text = StopMatcher(self._tokenizer, params.stop)
        ends = self._ends(params)
        logits = self._prefill(prompt, progress)
        first = 0.0
        for count in range(1, limit + 1):
            token = sampler.sample(logits)
            now = time.perf_counter()
            first = first or now
            self.timing = timing = replace(
                timing,
                new_tokens=count,
                ttft_s=first - start,
                decode_s=now - first,
                sweeps=self._executor.sweeps - sweeps,
            )
            if token in ends:
                yield Chunk(token, text.flush(), "stop")
                return
            piece = text.push(token)
            if text.stopped:
                yield Chunk(token, piece, "stop")
                return
            if count == limit:
                yield Chunk(token, piece + text.flush(), "length")
                return
            yield Chunk(token, piece)
            logits = self._append([token])

    def _prefill(self, prompt: list[int], progress: Progress | None) -> Array:
        """Sweep the prompt beyond what the cache already holds of it; the logits after its last
        token.
        """
        sequence = self._sequence
        same = 0
        for cached, token in zip(sequence.tokens, prompt[:-1], strict=False):
            if cached != token:
                break
            same += 1
        same = sequence.truncate(same)
        step, layers = self._executor.sweep_tokens, self._executor.layers
        total = (len(prompt) - same) * layers
        logits: Array | None = None
        for begin in range(same, len(prompt), step):
            tokens = prompt[begin : begin + step]
            done = (begin - same) * layers
            on_layer = _layer_progress(progress, done, len(tokens), total) if progress else None
            logits = self._append(tokens, begin + step >= len(prompt), on_layer)
        assert logits is not None
        return logits

    def _append(
        self,
        tokens: list[int],
        last: bool = True,
        on_layer: Callable[[int], None] | None = None,
    ) -> Array | None:
        """One sweep of `tokens` behind the cached ones; an abandoned sweep leaves the sequence
        as it was.
        """
        sequence = self._sequence
        start = len(sequence.tokens)
        sequence.reserve(start + len(tokens))
        span = Span(0, len(tokens), start, sequence.tables)
        logits = self._executor.sweep(tokens, (span,), logits=last, on_layer=on_layer)
        sequence.tokens += tokens
        return logits

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        if params.ignore_end:
            return frozenset()
        own = self._tokenizer.end_ids if self._tokenizer else frozenset()
        return own | params.stop_token_ids

    def _sampled_vocabulary(self) -> int:
        rows = self._vocab_size
        return self._tokenizer.sampled_rows(rows) if self._tokenizer else rows


def _layer_progress(
    progress: Progress, done: int, tokens: int, total: int
) -> Callable[[int], None]:
    """Report a sweep's layers in units of tokens times layers."""
    return lambda index: progress("prefill", done + index * tokens, total)
