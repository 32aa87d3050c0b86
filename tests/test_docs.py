"""The documents say what is there: every module, real commands, no place of whoever wrote them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexinfer.cli import main

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "flexinfer"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
README = (ROOT / "README.md").read_text()
COMMANDS = ("run", "plan", "bench", "perplexity", "info", "profile", "doctor")
TEXTS = {".py", ".pyi", ".md", ".toml", ".txt", ".cpp", ".h", ".json", "", ".gitignore"}
BUILT = {"build", "models", "dist", "__pycache__"}
# Folders in which only the author's machine has what a text would name.
AUTHORS = re.compile(r"(?<![\w.<{}*~/])/(?:home|root|Users|opt|mnt|work)/|\bshared/(?!\*)")
HOSTS = re.compile(r"https?://(?:[^\s/@]*@)?([\w.-]+)")
KNOWN_HOSTS = {
    "arxiv.org",
    "example.org",
    "git-lfs",
    "git-lfs.github.com",
    "keepachangelog.com",
    "semver.org",
    "www.apache.org",
}


def files() -> Iterator[Path]:
    """Text files of the project, hidden folders but .ci left out."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        if path.is_file() and not hidden and not BUILT & set(parts) and path.suffix in TEXTS:
            yield path


def listed(heading: str) -> list[str]:
    """The names in the first column of the table of architecture.md with that heading."""
    table = ARCHITECTURE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_architecture_has_a_line_for_every_module_and_no_other() -> None:
    modules = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for path in SOURCES.rglob("*.py")
        if path.name != "__init__.py"
    }
    names = listed("module")
    assert len(names) == len(set(names))
    assert set(names) == modules | {"_kernels"}


def test_architecture_has_every_native_source_and_no_other() -> None:
    names = listed("native source")
    assert len(names) == len(set(names))
    assert set(names) == {path.name for path in (ROOT / "csrc").iterdir() if path.is_file()}


def help_text(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_readme_names_every_command_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    general = help_text(capsys=capsys)
    offered = re.findall(r"^    (\w+)\b", general, re.MULTILINE)
    assert set(re.findall(r"flexinfer (\w+) \[?MODEL", README)) == set(offered)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_in_the_texts_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    offered = set(re.findall(r"--[a-z-]+", help_text(command, capsys=capsys)))
    used: set[str] = set()
    for name in ("README.md", "CONTRIBUTING.md", "Makefile"):
        for line in (ROOT / name).read_text().splitlines():
            for call in re.findall(rf"flexinfer {command} ([^`|#]*)", line):
                used |= set(re.findall(r"(?<!\S)--[a-z-]+", call))
    assert used <= offered


def test_python_example_runs_on_public_names() -> None:
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    compile(example[1], "README.md", "exec")
    imported = re.search(r"from flexinfer import (.*)", example[1])
    assert imported is not None
    import flexinfer

    assert set(imported[1].split(", ")) <= set(flexinfer.__all__)


def test_links_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_make_targets_in_the_texts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        used = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
        assert used <= targets, name


def test_nothing_names_its_authors_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if AUTHORS.search(line) or set(HOSTS.findall(line)) - KNOWN_HOSTS
    ]
    assert not found, "\n".join(found)
