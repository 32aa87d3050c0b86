"""The engine: requests in, tokens out. One sequence for now; a sweep carries any number of its
tokens.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from flexinfer.errors import FlexInferError, PromptError
from flexinfer.executor.executor import Executor
from flexinfer.executor.hybrid import HybridExecutor
from flexinfer.executor.kv_cache import PagePool
from flexinfer.executor.kv_cache import Sequence as CachedSequence
from flexinfer.executor.sampler import Sampler, SamplingParams
from flexinfer.executor.stops import StopMatcher
from flexinfer.ops.base import Array, Span
from flexinfer.planner.device import PhaseName
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

    Several continuations may be under way at once, in one thread or several: they take turns by
    the token, each sweeping again what the others drove out of the cache, so none is changed by
    them. Who holds `turn` goes on alone meanwhile.
    """

    def __init__(
        self,
        executor: Executor | HybridExecutor,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        context_tokens: int,
        pools: Sequence[PagePool],
        model: str = "the model",
    ) -> None:
        self.model = model  # as errors name it: its file
        self._executor = executor
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context_tokens = context_tokens
        self._sequence = CachedSequence(pools, context_tokens)
        self._served: list[int] | None = None  # whose cache it is, as long as nothing came between
        self._process = os.getpid()
        self._closed = False
        self._stepping_thread: int | None = None
        self.turn = threading.RLock()
        self.timing = Timing(0)

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, progress: Progress | None = None
    ) -> Generator[Chunk, None, None]:
        """Continue `prompt`; the last chunk carries the finish reason. Closing the iterator stops
        the work.

        Raises PromptError at once for a prompt that is empty, too long, or not of this vocabulary.
        """
        with self._step():
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
        with self._step():
            sequence, self._served = self._sequence, None
            sequence.truncate(0)
            sequence.reserve(len(tokens))
            span = Span(0, len(tokens), 0, sequence.tables)
            return self._executor.score(tokens, (span,), first)

    def close(self) -> None:
        """Refuse every further step; returns when none is under way. FlexInferError within one."""
        self._refuse_within_a_step()
        self._closed = True
        if self._process == os.getpid():  # a thread that was in a step never leaves it in a fork
            with self.turn:
                pass

    def check_process(self) -> None:
        """Raises FlexInferError in a fork of the process that opened the model."""
        if self._process != os.getpid():
            raise FlexInferError(
                f"the model was opened in process {self._process}, not in its fork {os.getpid()}, "
                "which has none of the threads that read it",
                'open it where it is used; multiprocessing has the start method "spawn"',
            )

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A turn of one sampled token. Raises FlexInferError where there can be none."""
        self.check_process()
        with self.turn:
            self._refuse_within_a_step()
            if self._closed:
                raise closed()
            self._stepping_thread = threading.get_ident()
            try:
                yield
            finally:
                self._stepping_thread = None

    def _refuse_within_a_step(self) -> None:
        if self._stepping_thread == threading.get_ident():
            raise FlexInferError(
                "a progress callback can neither begin another request nor close the model",
                "raise an exception there to stop the work",
            )

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
        self, tokens: list[int], params: SamplingParams, progress: Progress | None
    ) -> Generator[Chunk, None, None]:
        start = time.perf_counter()
        sweeps = self._executor.sweeps
        self.timing = timing = Timing(len(tokens))
        limit = min(params.max_tokens, self._context_tokens - len(tokens) + 1)
        if limit <= 0:
            yield Chunk(None, "", "length")
            return
        sampler = Sampler(params, self._sampled_vocabulary(), tokens, self.model)
        text = StopMatcher(self._tokenizer, params.stop)
        ends = self._ends(params)
        first = 0.0
        for count in range(1, limit + 1):
            with self._step():
                token = sampler.sample(self._advance(tokens, progress))
            tokens.append(token)
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

    def _advance(self, tokens: list[int], progress: Progress | None) -> Array:
        """The logits after `tokens`, of which the last one is new since its latest turn."""
        if self._served is tokens:
            return self._append(tokens[-1:], phase="decode")
        self._served = None  # until it is done: it may be interrupted
        logits = self._prefill(tokens, progress)
        self._served = tokens
        return logits

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
        phase: PhaseName = "prefill",
    ) -> Array | None:
        """One sweep of `tokens` behind the cached ones; an abandoned sweep leaves the sequence
        as it was.
        """
        sequence = self._sequence
        start = len(sequence.tokens)
        sequence.reserve(start + len(tokens))
        span = Span(0, len(tokens), start, sequence.tables)
        logits = self._executor.sweep(tokens, (span,), logits=last, on_layer=on_layer, phase=phase)
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


def closed() -> FlexInferError:
    """What is said of requests that come too late."""
    return FlexInferError("the model is closed", "open it again")


def _layer_progress(
    progress: Progress, done: int, tokens: int, total: int
) -> Callable[[int], None]:
    """Report a sweep's layers in units of tokens times layers."""
    return lambda index: progress("prefill", done + index * tokens, total)
