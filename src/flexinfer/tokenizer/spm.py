"""SentencePiece BPE (GGUF's "llama" tokenizers), on the `sentencepiece` library.

The library wants a serialized ModelProto; the few fields that matter here are written by hand
(sentencepiece_model.proto; encoding: protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from flexinfer.errors import FormatError
from flexinfer.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
)

_VARINT, _BYTES, _FLOAT = 0, 2, 5  # wire types
_BPE = 2  # TrainerSpec.ModelType
_MAX_SCORE = 3e38  # of float32
_SPACE = "\u2581"  # stands for a space in pieces


@cache  # the lengths of pieces are few
def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(payload)) + payload


class SentencePieces:
    """Pieces of the `sentencepiece` library, made from a ModelProto (see model_proto)."""

    def __init__(self, proto: bytes, vocabulary: Vocabulary, prefixes_space: bool) -> None:
        """Raises FormatError where the library refuses the vocabulary."""
        self.prefixes_space = prefixes_space
        self._types = vocabulary.types
        self._library = SentencePieceProcessor()
        try:
            self._library.LoadFromSerializedProto(proto)
        except RuntimeError as error:
            raise FormatError(
                f"tokenizer.ggml.tokens: {error}", "convert the model again"
            ) from error

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._library.EncodeAsIds(text)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        piece: str = self._library.IdToPiece(token_id)
        if self._types[token_id] == BYTE:
            return bytes([int(piece[3:-1], 16)])  # <0x0A>
        return piece.replace(_SPACE, " ").encode()


def model_proto(
    tokens: Sequence[str], scores: NDArray[Any], vocabulary: Vocabulary, prefixes_space: bool
) -> bytes:
    """A sentencepiece ModelProto that tokenizes as the GGUF vocabulary means. Raises FormatError.

    User-defined tokens become normal: they are cut out of the text beforehand, and within the rest
    merges may still arrive at them.
    """
    if len(scores) != len(tokens):
        raise FormatError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens",
            "convert the model again",
        )
    if not (np.abs(scores) < _MAX_SCORE).all():  # nor NaN, which has no order
        raise FormatError(
            "tokenizer.ggml.scores has values that are no scores", "convert the model again"
        )
    score_bytes = scores.astype("<f4").tobytes()
    types = vocabulary.types.copy()
    types[types == USER_DEFINED] = NORMAL
    types[types == UNKNOWN] = CONTROL  # the library wants exactly one unknown token
    types[vocabulary.unknown_id or 0] = UNKNOWN
    type_bytes = types.tobytes()
    score_tag, type_tag = bytes([2 << 3 | _FLOAT]), bytes([3 << 3 | _VARINT])
    proto = bytearray()
    for i, token in enumerate(tokens):
        score = score_bytes[4 * i : 4 * i + 4]
        piece = _message(1, token.encode()) + score_tag + score + type_tag + type_bytes[i : i + 1]
        proto += _message(1, piece)
    has_bytes = bool((types == BYTE).any())
    trainer = _number(3, _BPE) + _number(35, has_bytes)
    # Prefix as asked, runs of spaces kept, spaces written as U+2581; no other normalisation.
    spaces = _number(3, prefixes_space) + _number(4, False) + _number(5, True)
    proto += _message(2, trainer) + _message(3, _message(1, b"identity") + spaces)
    return bytes(proto)
