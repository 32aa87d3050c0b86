"""The tokenizer that a GGUF file's metadata describe."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.heap import trim_heap
from flexinfer.tokenizer.keys import TokenizerKeys
from flexinfer.tokenizer.pretokenizers import pre_tokenizer
from flexinfer.tokenizer.tokenizer import MissingTokenizer, Pieces, Tokenizer
from flexinfer.tokenizer.vocabulary import Vocabulary, read_vocabulary

_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # sentencepiece's own, where the file has no others


def load_tokenizer(metadata: Mapping[str, Any], file: str = "the model file") -> Tokenizer:
    """The tokenizer of `metadata` (GGUF keys; each array is read once).

    A `file` without a tokenizer gives one that refuses text, so that token ids can still be used.
    Raises UnsupportedError for a kind we do not have, FormatError for damaged metadata.
    """
    keys = TokenizerKeys(metadata)
    kind = keys.text("model") or "none"
    if kind in ("none", "no_vocab"):
        return _without_text(keys, file)
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"the tokenizer {kind!r} (tokenizer.ggml.model) is not supported",
            "known are: gpt2 (byte-level BPE), llama (SentencePiece); token ids work with any",
        )
    load = _byte_pairs if kind == "gpt2" else _sentence_pieces
    pieces, vocabulary, add_bos = load(keys)
    trim_heap()
    add_bos = keys.flag("add_bos_token", add_bos)
    if add_bos and vocabulary.bos_id is None:
        raise FormatError(
            "tokenizer.ggml.add_bos_token is true, but bos_token_id is absent",
            "convert the model again",
        )
    return Tokenizer(pieces, vocabulary, add_bos)


# The libraries are imported where they are needed: each takes memory, and a file needs but one.


def _byte_pairs(keys: TokenizerKeys) -> tuple[Pieces, Vocabulary, bool]:
    from flexinfer.tokenizer.bpe import load_byte_pairs

    pre = pre_tokenizer(keys.text("pre"))
    tokens = keys.texts("tokens")
    vocabulary = read_vocabulary(keys, tokens, {})
    return load_byte_pairs(keys, tokens, vocabulary, pre), vocabulary, pre.add_bos


def _sentence_pieces(keys: TokenizerKeys) -> tuple[Pieces, Vocabulary, bool]:
    from flexinfer.tokenizer.spm import SentencePieces, model_proto

    prefixes_space = keys.flag("add_space_prefix", True)
    tokens = keys.texts("tokens")
    vocabulary = read_vocabulary(keys, tokens, _SPM_IDS)
    proto = model_proto(tokens, keys.numbers("scores"), vocabulary, prefixes_space)
    del tokens  # before the library's copies
    return SentencePieces(proto, vocabulary, prefixes_space), vocabulary, True


def _without_text(keys: TokenizerKeys, file: str) -> Tokenizer:
    """Special ids may be stated without a vocabulary, and end an answer then, too."""
    bos, eos, eot = (keys.integer(f"{name}_token_id") for name in ("bos", "eos", "eot"))
    ends = frozenset(i for i in (eos, eot) if i is not None)
    vocabulary = Vocabulary(np.zeros(0, np.uint8), {}, {}, bos, eos, None, ends)
    return MissingTokenizer(vocabulary, file)
