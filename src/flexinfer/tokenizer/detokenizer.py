"""Text from tokens as they come, never half a character."""

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    @property
    def prefixes_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class Detokenizer:
    """Give ids to `push`, print what it returns; `flush` at the end.

    The pieces together equal `Tokenizer.decode` of all ids. A vocabulary that puts a space before a
    text loses it again here, unless the tokens are `continuing` a text (" Paris" after "France
    is"). Bytes that are not UTF-8 become U+FFFD once no later token can complete them.
    """

    def __init__(self, tokenizer: TokenBytes, *, continuing: bool = False) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._drop_space = tokenizer.prefixes_space and not continuing
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        data = self._token_bytes(token_id)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left of an incomplete character, as U+FFFD."""
        return self._utf8.decode(b"", final=True)
