"""The jinja2 environment that chat templates expect: as Hugging Face's `apply_chat_template`."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Never

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flexinfer.errors import FormatError, PromptError


class _Refusal(TemplateError):
    """What a template raises about the messages."""


def _raise_exception(message: str) -> Never:
    raise _Refusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Generation(Extension):
    """`{% generation %}` marks an answer for training; for a prompt its body is plain template."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> Callable[..., str]:
    """A function of the template's variables; its errors are those of ChatTemplate.render."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    try:
        template = environment.from_string(source)
    except TemplateSyntaxError as error:
        raise FormatError(
            f"the chat template (tokenizer.chat_template) is faulty, line {error.lineno}: {error}",
            "use --raw to do without it",
        ) from error
    except Exception as error:  # nested too deeply, say
        raise FormatError(
            f"the chat template (tokenizer.chat_template) is faulty: {type(error).__name__}",
            "use --raw to do without it",
        ) from error

    def render(**variables: Any) -> str:
        try:
            return template.render(variables)
        except _Refusal as error:
            raise PromptError(
                f"the model's chat template refuses these messages: {error}",
                "change the roles or their order; --raw does without a template",
            ) from error
        except SecurityError as error:
            raise FormatError(
                f"the chat template does what a template may not: {error}",
                "do not trust this file; --raw does without its template",
            ) from error
        except Exception as error:  # a template is a program, and may fail in any way
            raise PromptError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                "check the roles and contents; --raw does without a template",
            ) from error

    return render
