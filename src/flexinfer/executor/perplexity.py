"""Perplexity of a text, as llama-perplexity computes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.errors import OptionError, PromptError
from flexinfer.executor.engine import Engine, Progress
from flexinfer.executor.sampler import not_finite

MIN_CONTEXT_TOKENS = 4  # below that a chunk's second half predicts nothing


@dataclass(frozen=True, slots=True)
class Perplexity:
    perplexity: float
    chunks: int
    ctx: int
    scored_tokens: int


def check_text(tokens: Sequence[int], ctx: int, chunks: int | None) -> int:
    """How many chunks to score. Raises OptionError, and PromptError for less than one chunk."""
    if ctx < MIN_CONTEXT_TOKENS:
        raise OptionError(f"--ctx is {ctx}; it must be {MIN_CONTEXT_TOKENS} or more")
    if chunks is not None and chunks < 1:
        raise OptionError(f"--chunks is {chunks}; it must be 1 or more")
    whole = len(tokens) // ctx
    if not whole:
        raise PromptError(
            f"the text has {len(tokens)} tokens, less than one chunk of {ctx}",
            "give a longer text or a smaller --ctx",
        )
    return whole if chunks is None else min(whole, chunks)


def perplexity(
    engine: Engine,
    tokens: Sequence[int],
    *,
    ctx: int,
    chunks: int | None = None,
    bos_id: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """exp of the mean negative log-probability of the second halves of chunks of `ctx` tokens.

    Each chunk is evaluated alone, its first token replaced by `bos_id` where the model wants one;
    the last chunk, if not full, is left out.
    """
    chosen = check_text(tokens, ctx, chunks)
    half, total, scored = ctx // 2, 0.0, 0
    for index in range(chosen):
        if progress:
            progress("score", index, chosen)
        chunk = list(tokens[index * ctx : (index + 1) * ctx])
        if bos_id is not None:
            chunk[0] = bos_id
        log_probabilities = engine.score(chunk, half)
        here = float(log_probabilities.sum())
        if math.isnan(here):
            raise not_finite(engine.model, here)
        total -= here
        scored += len(log_probabilities)
    return Perplexity(math.exp(total / scored), chosen, ctx, scored)
