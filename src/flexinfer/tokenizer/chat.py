"""Chat messages to a prompt, by the template in the model's file."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.gguf_values import brief
from flexinfer.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]  # role, content, and what else the template knows


class ChatTemplate:
    """A model's jinja2 template, run in a sandbox: it comes with the file and is not trusted."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        """`bos` and `eos` are the texts of those tokens. Raises FormatError for a bad template."""
        from flexinfer.tokenizer.jinja import compile_template  # jinja2 takes time to import

        self._render = compile_template(source)
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The prompt for `messages`; `extra` are further variables of the template.

        Raises PromptError where the template refuses the messages, FormatError where it does what
        the sandbox forbids.
        """
        variables = {"tools": None, "documents": None, **self._tokens, **extra}
        return self._render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, **variables
        )


def load_chat_template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template in GGUF `metadata`; UnsupportedError where there is none,
    FormatError where it is no template.
    """
    source = metadata.get("tokenizer.chat_template")
    if not source:
        raise UnsupportedError(
            "the model has no chat template: it continues texts, it does not answer",
            "use --raw to have the prompt continued as it is",
        )
    if not isinstance(source, str):
        raise FormatError(
            f"tokenizer.chat_template is {brief(source)}, not a text", "use --raw to do without it"
        )

    def text(token_id: int | None) -> str:
        piece = b"" if token_id is None else tokenizer.token_bytes(token_id, control=True)
        return piece.decode(errors="replace")  # a byte of a longer character, say

    return ChatTemplate(source, text(tokenizer.bos_id), text(tokenizer.eos_id))
