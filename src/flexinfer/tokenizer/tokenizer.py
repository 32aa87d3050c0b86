"""Text to token ids and back, of whatever kind the model's vocabulary is."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from flexinfer.errors import PromptError, UnsupportedError
from flexinfer.tokenizer.detokenizer import Detokenizer
from flexinfer.tokenizer.specials import Specials
from flexinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary

_HIDDEN = (CONTROL, UNKNOWN, UNUSED)


class Pieces(Protocol):
    """A kind of tokenizer: cuts text that is free of special tokens; knows its tokens' bytes."""

    @property
    def prefixes_space(self) -> bool:
        """Whether `encode` puts a space before its text."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class Tokenizer:
    """Immutable, and safe to share between threads."""

    def __init__(self, pieces: Pieces, vocabulary: Vocabulary, add_bos: bool) -> None:
        self._pieces = pieces
        self._vocabulary = vocabulary
        self._special_text = {
            i: text
            for table in (vocabulary.control, vocabulary.user_defined)
            for text, i in table.items()
        }
        self._user_defined = Specials(vocabulary.user_defined)
        self._all_special = Specials(vocabulary.control | vocabulary.user_defined)
        self.add_bos = add_bos
        used = np.flatnonzero(vocabulary.types != UNUSED)
        self._used_size = int(used[-1]) + 1 if used.size else 0

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary; the model's embedding may have more rows."""
        return self._vocabulary.size

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._vocabulary.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer: eos, eot, eom, and control tokens known to do so."""
        return self._vocabulary.end_ids

    def sampled_rows(self, rows: int) -> int:
        """How many of a model's `rows` logits, from the first on, stand for a token.

        What follows is padding: of the embedding beyond the vocabulary, or of the vocabulary.
        """
        return min(rows, self._used_size) if self._used_size else rows

    @property
    def prefixes_space(self) -> bool:
        """Whether text gets a space in front, which `decode` takes away again."""
        return self._pieces.prefixes_space

    def encode(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        """Token ids of `text`.

        `special`: control tokens written out in the text become those tokens; without it they are
        plain text. `bos`: the model's BOS comes first where the model wants one, once, also if the
        text itself begins with it. An end token is never added: a prompt is there to be continued.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text has a lone surrogate ({text[error.start]!a}) at character {error.start}",
                "decode the text as UTF-8 (or UTF-16) before handing it over",
            ) from error
        ids: list[int] = []
        for part in (self._all_special if special else self._user_defined).split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._pieces.encode(part)
        if bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, continuing: bool = False) -> str:
        """The text of `ids`, control tokens left out; see Detokenizer for `continuing`."""
        detokenizer = self.detokenizer(continuing=continuing)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(self, *, continuing: bool = False) -> Detokenizer:
        """For text that comes token by token."""
        return Detokenizer(self, continuing=continuing)

    def token_bytes(self, token_id: int, *, control: bool = False) -> bytes:
        """The bytes that a token stands for; control tokens stand for none unless `control`."""
        if not 0 <= token_id < self.vocab_size:
            raise PromptError(
                f"there is no token {token_id}: the vocabulary has {self.vocab_size} tokens",
                "were the ids made with the tokenizer of another model?",
            )
        kind = self._vocabulary.types[token_id]
        if kind == USER_DEFINED or (control and kind in (CONTROL, UNKNOWN)):
            return self._special_text.get(token_id, "").encode()
        return b"" if kind in _HIDDEN else self._pieces.token_bytes(token_id)


class MissingTokenizer(Tokenizer):
    """Stands where a model `file` has no tokenizer: text is refused; ids work and have no text."""

    def __init__(self, vocabulary: Vocabulary, file: str) -> None:
        super().__init__(self, vocabulary, add_bos=False)
        self._file = file

    @property
    def prefixes_space(self) -> bool:
        return False

    def encode(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        raise self._refusal()

    def decode(self, ids: Iterable[int], *, continuing: bool = False) -> str:
        raise self._refusal()

    def token_bytes(self, token_id: int, *, control: bool = False) -> bytes:
        return b""

    def _refusal(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._file}: there is no tokenizer: text cannot be used with it",
            "give token ids, or convert the model again with its tokenizer",
        )
