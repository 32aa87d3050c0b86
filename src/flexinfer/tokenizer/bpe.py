"""Byte-level BPE (GGUF's "gpt2" tokenizers), on the `tokenizers` library."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from flexinfer.errors import FormatError
from flexinfer.tokenizer.keys import TokenizerKeys
from flexinfer.tokenizer.pretokenizers import PreTokenizer
from flexinfer.tokenizer.vocabulary import NORMAL, Vocabulary

# Words remembered between calls. The library's own 10,000 cost megabytes for little time.
_CACHED_WORDS = 1000
_CHUNK_CHARACTERS = 8192
_WORD_START = re.compile(r"(?<=\S\n)(?=\S)|(?<=[a-z])(?= [a-z])")


def _byte_of_letter() -> dict[str, int]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary (OpenAI's GPT-2)."""
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(0x100 + n): byte for n, byte in enumerate(others)}
    return letters | {chr(byte): byte for byte in printable}


def _chunks(text: str) -> Iterator[str]:
    """`text` in pieces of some 8,192 characters: the library takes 300 bytes of memory for each.

    A lone line end between visible characters ends a word, and a lone space between letters begins
    one, in the patterns of every pre-tokenizer: cutting there changes no ids.
    """
    start = 0
    while match := _WORD_START.search(text, start + _CHUNK_CHARACTERS):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


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
        ids: list[int] = []
        for chunk in _chunks(text):
            ids += self._library.encode(chunk, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._library.id_to_token(token_id) or ""
        try:
            return bytes(map(self._byte_of_letter.__getitem__, piece))
        except KeyError:  # a token that was not made of bytes
            return piece.encode()


def load_byte_pairs(
    keys: TokenizerKeys, tokens: Sequence[str], vocabulary: Vocabulary, pre: PreTokenizer
) -> BytePairs:
    """Only normal tokens go to the library, so that plain text cannot become a control token.

    Raises FormatError where merges and tokens do not fit together.
    """
    normal = np.flatnonzero(vocabulary.types == NORMAL).tolist()
    ids = {tokens[i]: i for i in normal}
    if len(ids) != len(normal):
        raise FormatError(
            "tokenizer.ggml.tokens has the same text twice", "convert the model again"
        )
    merges: Sequence[str] = keys.texts("merges") if "merges" in keys else ()
    # Pairs of the vocabulary's own strings, not of copies: 15 MiB less for 150,000 merges.
    same = {text: text for text in ids}
    try:
        pairs = [(same[left], same[right]) for left, right in map(str.split, merges)]
        del merges, same  # before the library's copies
        model = models.BPE(
            vocab=ids, merges=pairs, ignore_merges=pre.whole_words, cache_capacity=_CACHED_WORDS
        )
    except Exception as error:  # the library raises bare exceptions
        raise FormatError(
            f"tokenizer.ggml.merges and tokens do not fit: {error}", "convert the model again"
        ) from error
    return BytePairs(model, pre)
