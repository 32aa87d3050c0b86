"""Modules import only what comes before them, and nothing heavy comes along."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src" / "flexinfer"

# A module may import its own line and those above. The longest name that fits a module places it.
ORDER = [
    ["_kernels"],
    ["errors", "units", "heap", "config"],
    ["formats"],
    [
        "tokenizer",
        "models.spec",
        "models.gguf_facts",
        "models.gguf_keys",
        "models.gguf_rope",
        "models.from_gguf",
        "models.weights",
    ],
    ["memory"],
    ["planner"],
    ["ops", "streaming"],
    ["models"],
    ["executor"],
    ["llm"],
    ["commands"],
    ["server", "arguments", "cli", "__main__", "__init__"],
]
PLACES = {name: place for place, names in enumerate(ORDER) for name in names}
HEAVY = {"torch", "triton", "transformers", "gguf", "huggingface_hub"}
MODULES = sorted(SOURCES.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def place(module: str) -> int:
    """Where a module (its name without `flexinfer.`) stands in the order."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in PLACES:
            return PLACES[name]
    raise KeyError(f"{module} has no place in the order of imports: give it one")


def submodule(name: str) -> str:
    """What `from flexinfer import name` imports: a submodule, or a name of the package itself."""
    return name if name in PLACES or (SOURCES / f"{name}.py").exists() else "__init__"


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: imports are absolute"
            if node.module == "flexinfer":
                yield from (f"flexinfer.{submodule(alias.name)}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_backwards(path: Path) -> None:
    own = place(module_name(path))
    for target in imports(path):
        package, _, rest = target.partition(".")
        if package == "flexinfer":
            found = place(rest or "__init__")
            assert found <= own, f"{module_name(path)} imports {target}, which comes after it"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_heavy_packages_stay_with_their_modules(path: Path) -> None:
    heavy = {target.split(".")[0] for target in imports(path)} & HEAVY
    allowed = {"ops.torch_triton": {"torch", "triton"}, "ops.torch": {"torch"}}
    at = next((name for name in allowed if module_name(path).startswith(name)), None)
    assert heavy <= (allowed[at] if at else set())


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import flexinfer, sys; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
