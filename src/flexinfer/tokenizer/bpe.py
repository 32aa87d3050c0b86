"""Byte-level BPE (GGUF's "gpt2" tokenizers), on the `tokenizers` library."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from flexinfer.errors import FormatError
from flexinfer.tokenizer.pretokenizers import PreTokenizer
from flexinfer.tokenizer.vocabulary import NORMAL, Vocabulary

# Words remembered between calls. The library's own 10,000 cost megabytes for little time.
_CACHED_WORDS = 1000


def _byte_of_letter() -> dict[str, int]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary (OpenAI's GPT-2)."""
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(0x100 + n): byte for n, byte in enumerate(others)}
    return letters | {chr(byte): byte for byte in printable}


class BytePairs:
    """Bytes that the vocabulary lacks a letter for vanish from the text, as in llama.cpp."""

    prefixes_space = False

    def __init__(self, model: models.BPE, pre: PreTokenizer) -> None:
        self._library = Library(model)
        self._library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._byte_of_letter = _byte_of_letter()

    def encode(self, text: str) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._library.id_to_token(token_id) or ""
        try:
            return bytes(map(self._byte_of_letter.__getitem__, piece))
        except KeyError:  # a token that was not made of bytes
            return piece.encode()


def load_byte_pairs(
    metadata: Mapping[str, Any], tokens: Sequence[str], vocabulary: Vocabulary, pre: PreTokenizer
) -> BytePairs:
    """Only normal tokens go to the library, so that plain text cannot become a control token.

    Raises FormatError where merges and tokens do not fit together.
    """
    normal = np.flatnonzero(vocabulary.types == NORMAL).tolist()
    ids = {tokens[i]: i for i in normal}
    if len(ids) != len(normal):
        raise FormatError("tokenizer.ggml.tokens has the same text twice")
    merges: Sequence[str] = metadata.get("tokenizer.ggml.merges", ())
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise FormatError(f"tokenizer.ggml.merges: {merge!r} joins or makes unknown tokens")
        # The vocabulary's own strings, not copies: 15 MiB less for 150,000 merges.
        pairs.append((tokens[ids[left]], tokens[ids[right]]))
    del merges  # before the library's copies
    model = models.BPE(
        vocab=ids, merges=pairs, ignore_merges=pre.whole_words, cache_capacity=_CACHED_WORDS
    )
    return BytePairs(model, pre)
