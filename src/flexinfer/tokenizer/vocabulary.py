"""What the metadata say of a vocabulary besides its pieces: token types, special ids, endings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexinfer.errors import FormatError
from flexinfer.tokenizer.keys import TokenizerKeys, full

# Token types; GGUF and sentencepiece number them alike.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Control tokens that end a turn in the families that use them, whatever the metadata's eos is.
_END_TEXTS = {
    *("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "<end_of_turn>", "<end_of_utterance>"),
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
    *("<|EOT|>", "<|return|>", "<|call|>"),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The part of a vocabulary that is kept in Python: a byte per token, and the special ones."""

    types: NDArray[np.uint8]  # one per token
    control: dict[str, int]  # never typed by text unless asked for, never shown
    user_defined: dict[str, int]  # always cut out of the text whole, and shown
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.types)


def read_vocabulary(
    keys: TokenizerKeys, tokens: Sequence[str], defaults: Mapping[str, int]
) -> Vocabulary:
    """Types and special ids of `tokens`; `defaults` are a kind's ids where there are no others.

    Raises FormatError where lengths or ids do not fit the vocabulary.
    """
    size = len(tokens)
    if size == 0:
        raise FormatError("tokenizer.ggml.tokens is empty", "convert the model again")

    def special_id(name: str) -> int | None:
        key = f"{name}_token_id"
        value = keys.integer(key, defaults.get(name))
        if value is not None and not 0 <= value < size:
            raise FormatError(
                f"{full(key)} is {value}, but the vocabulary has {size} tokens",
                "convert the model again",
            )
        return value

    named = {name: special_id(name) for name in ("bos", "eos", "eot", "eom", "unknown")}
    types = _types(keys, size, {i for i in named.values() if i is not None})
    control, user_defined = (
        {tokens[i]: i for i in np.flatnonzero(np.isin(types, kinds)).tolist() if tokens[i]}
        for kinds in ((CONTROL, UNKNOWN), (USER_DEFINED,))
    )
    end_ids = {control[text] for text in _END_TEXTS & control.keys()}
    end_ids |= {i for name in ("eos", "eot", "eom") if (i := named[name]) is not None}
    return Vocabulary(
        types,
        control,
        user_defined,
        named["bos"],
        named["eos"],
        named["unknown"],
        frozenset(end_ids),
    )


def _types(keys: TokenizerKeys, size: int, named_ids: set[int]) -> NDArray[np.uint8]:
    key = "token_type"
    if key not in keys:  # then only the ids named in the metadata are known to be special
        types = np.full(size, NORMAL, np.uint8)
        types[sorted(named_ids)] = CONTROL
        return types
    stated = keys.numbers(key)
    if stated.shape != (size,):
        raise FormatError(
            f"{full(key)} has {stated.size} entries for {size} tokens", "convert the model again"
        )
    if not np.isin(stated, range(NORMAL, BYTE + 1)).all():
        raise FormatError(
            f"{full(key)} has values outside {NORMAL}..{BYTE}", "convert the model again"
        )
    return stated.astype(np.uint8)
