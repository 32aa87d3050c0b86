"""Every refusal says what to do about it, and what is wrong with a model says which."""

import ast
import math
import struct
from pathlib import Path

import pytest

from flexinfer import LLM, errors
from flexinfer.cli import main
from flexinfer.errors import FormatError
from gguf_bytes import STRING, entry, text
from tiny_llama import DIM, tiny_llama

SOURCES = Path(__file__).parent.parent / "src" / "flexinfer"
# Of options the message says what is wanted, and the command line adds where that is written.
KINDS = {
    kind.__name__
    for kind in errors.FlexInferError.__subclasses__()
    if kind.__name__ != "OptionError"
}


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda p: p.stem)
def test_every_refusal_has_a_hint(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            assert len(node.args) == 2, f"{path.name}:{node.lineno}: {ast.unparse(node)}"


TEMPLATE = "tokenizer.chat_template"
NAN = struct.pack("<f", math.nan)


def odd_model(path: Path, key: str, value: str | None) -> Path:
    """A tiny model without a key, or with a text there; for "weights" they are no numbers."""
    if key == "weights":
        data = tiny_llama()
        path.write_bytes(data[: -4 * DIM] + DIM * NAN)  # of the head's last row
    else:
        path.write_bytes(
            tiny_llama({key: None if value is None else entry(key, STRING, text(value))})
        )
    return path


@pytest.mark.parametrize(
    ("key", "value", "raw"),
    [
        ("tokenizer.ggml.model", None, True),
        ("tokenizer.ggml.tokens", None, True),
        (TEMPLATE, None, False),
        (TEMPLATE, "{% if %}", False),
        (TEMPLATE, "{{ messages.append(1) }}", False),
        (TEMPLATE, "{{ raise_exception('not so') }}", False),
        (TEMPLATE, "{{ messages[9].content.x }}", False),
        ("weights", None, True),
    ],
)
def test_what_is_wrong_with_a_model_is_said_with_its_file(
    key: str, value: str | None, raw: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = odd_model(tmp_path / "odd.gguf", key, value)
    assert main(["run", str(path), "AB", "--max-tokens", "2", "--quiet", *["--raw"] * raw]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: ")


def test_weights_that_are_no_numbers_are_the_files_in_python_too(tmp_path: Path) -> None:
    path = odd_model(tmp_path / "odd.gguf", "weights", None)
    with LLM(path, ctx=32) as llm, pytest.raises(FormatError, match=f"{path}: a result is nan"):
        llm.generate([5, 6])
