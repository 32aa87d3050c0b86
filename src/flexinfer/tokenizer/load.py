"""The tokenizer that a GGUF file's metadata describe."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.heap import trim_heap
from flexinfer.tokenizer.pretokenizers import pre_tokenizer
from flexinfer.tokenizer.tokenizer import MissingTokenizer, Pieces, Tokenizer
from flexinfer.tokenizer.vocabulary import Vocabulary, read_vocabulary

_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # sentencepiece's own, where the file has no others


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of `metadata` (GGUF keys; each array is read once).

    A file without a tokenizer gives one that refuses text, so that token ids can still be used.
    Raises UnsupportedError for a kind we do not have, FormatError for damaged metadata.
    """
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return _without_text(metadata)
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"the tokenizer {kind!r} (tokenizer.ggml.model) is not supported",
            "known are: gpt2 (byte-level BPE), llama (SentencePiece); token ids work with any",
        )
    if "tokenizer.ggml.tokens" not in metadata:
        raise FormatError("tokenizer.ggml.tokens is absent", "convert the model again")
    load = _byte_pairs if kind == "gpt2" else _sentence_pieces
    pieces, vocabulary, add_bos = load(metadata)
    trim_heap()
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    if add_bos and vocabulary.bos_id is None:
        raise FormatError(
            "tokenizer.ggml.add_bos_token is true, but bos_token_id is absent",
            "convert the model again",
        )
    return Tokenizer(pieces, vocabulary, add_bos)


# The libraries are imported where they are needed: each takes memory, and a file needs but one.


def _byte_pairs(metadata: Mapping[str, Any]) -> tuple[Pieces, Vocabulary, bool]:
    from flexinfer.tokenizer.bpe import load_byte_pairs

    pre = pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = read_vocabulary(metadata, tokens, {})
    return load_byte_pairs(metadata, tokens, vocabulary, pre), vocabulary, pre.add_bos


def _sentence_pieces(metadata: Mapping[str, Any]) -> tuple[Pieces, Vocabulary, bool]:
    from flexinfer.tokenizer.spm import SentencePieces, model_proto

    prefixes_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = read_vocabulary(metadata, tokens, _SPM_IDS)
    if "tokenizer.ggml.scores" not in metadata:
        raise FormatError("tokenizer.ggml.scores is absent", "convert the model again")
    proto = model_proto(tokens, metadata["tokenizer.ggml.scores"], vocabulary, prefixes_space)
    del tokens  # before the library's copies
    return SentencePieces(proto, vocabulary, prefixes_space), vocabulary, True


def _without_text(metadata: Mapping[str, Any]) -> Tokenizer:
    """Special ids may be stated without a vocabulary, and end an answer then, too."""
    bos, eos, eot = (
        metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")
    )
    ends = frozenset(i for i in (eos, eot) if i is not None)
    return MissingTokenizer(Vocabulary(np.zeros(0, np.uint8), {}, {}, bos, eos, None, ends))
