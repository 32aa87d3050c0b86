"""Every refusal says what to do about it."""

import ast
from pathlib import Path

import pytest

from flexinfer import errors

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
