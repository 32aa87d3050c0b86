"""Perplexity against log-probabilities taken one token after the other."""

import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from engine_tools import opened, sweep_logits
from factory import VOCAB_SIZE, make_gguf
from flexinfer.errors import FormatError, OptionError, PromptError
from flexinfer.executor import executor
from flexinfer.executor.engine import Engine
from flexinfer.executor.perplexity import check_text, perplexity

TOKENS = [(29 * i * i + 7 * i + 3) % VOCAB_SIZE for i in range(100)]
CTX = 32


def log_probability(logits: np.ndarray, token: int) -> float:
    exact = logits.astype(np.float64)
    return float(exact[token] - exact.max() - np.log(np.exp(exact - exact.max()).sum()))


@pytest.mark.parametrize("slab_values", [executor.SCORE_SLAB_VALUES, 1])
@pytest.mark.parametrize("bos_id", [None, 1])
def test_the_second_half_of_each_chunk_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slab_values: int, bos_id: int | None
) -> None:
    """In one piece of the vocabulary, and in two."""
    monkeypatch.setattr(executor, "SCORE_SLAB_VALUES", slab_values)
    make_gguf(tmp_path / "m.gguf", "llama", block_type="Q8_0", tie_word_embeddings=True)
    with opened(tmp_path / "m.gguf", CTX, 1, ctx=128) as llm:
        result = perplexity(llm.session.engine, TOKENS, ctx=CTX, bos_id=bos_id)
        total, count = 0.0, 0
        for start in range(0, 96, CTX):  # the last four tokens fill no chunk
            chunk = TOKENS[start : start + CTX]
            chunk[0] = chunk[0] if bos_id is None else bos_id
            logits = sweep_logits(llm, chunk, range(1, CTX + 1))
            for position in range(CTX // 2 + 1, CTX):
                total -= log_probability(logits[position - 1], chunk[position])
                count += 1
    assert (result.chunks, result.ctx, result.scored_tokens) == (3, CTX, count)
    assert result.perplexity == pytest.approx(math.exp(total / count), rel=1e-6)


def test_how_many_chunks_there_are() -> None:
    assert check_text(TOKENS, 32, None) == 3
    assert check_text(TOKENS, 32, 2) == 2
    assert check_text(TOKENS, 100, 9) == 1
    with pytest.raises(PromptError, match="the text has 100 tokens, less than one chunk of 101"):
        check_text(TOKENS, 101, None)
    for ctx, chunks in ((3, None), (32, 0)):
        with pytest.raises(OptionError):
            check_text(TOKENS, ctx, chunks)


def test_a_result_that_is_no_number_is_an_error() -> None:
    class Damaged:
        model = "damaged.gguf"

        def score(self, tokens: list[int], first: int) -> np.ndarray:
            return np.array([-1.0, math.nan])

    with pytest.raises(FormatError, match=r"damaged\.gguf: a result is nan"):
        perplexity(cast(Engine, Damaged()), list(range(8)), ctx=4)
