"""Hostile headers: one error each that names the file and what is wrong, at once, in no memory."""

import json
import subprocess
import sys
from pathlib import Path
from struct import pack
from typing import Any

import pytest

import gguf_bytes as build
from cli_tools import environment
from flexinfer.cli import main
from flexinfer.errors import FormatError
from flexinfer.formats.gguf import open_gguf
from hostile_headers import HOSTILE
from tiny_llama import tiny_llama

ROOM_MIB = 8  # of addresses, beyond what the process has: real vocabularies take more
# Opens each file, as the commands do, where no more memory is to be had.
OPEN_ALL = """
import json, resource, sys, time
from pathlib import Path
from flexinfer.executor.model import open_model
from flexinfer.memory.budget import size_table
sound, room, *paths = sys.argv[1:]
open_model(sound)
limit = size_table(Path("/proc/self/status"))["VmSize"] + (int(room) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in paths:
    started = time.process_time()
    try:
        open_model(path)
        said = ["opened", "", ""]
    except BaseException as error:
        said = [type(error).__name__, str(error), getattr(error, "hint", None)]
    print(json.dumps([*said, time.process_time() - started]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, list[Any]]:
    """What is said of each, by one process that is short of memory."""
    (folder / "sound.gguf").write_bytes(tiny_llama())
    for number, (raw, _) in enumerate(HOSTILE.values()):
        (folder / f"{number}.gguf").write_bytes(raw)
    paths = [str(folder / f"{number}.gguf") for number in range(len(HOSTILE))]
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, str(folder / "sound.gguf"), str(ROOM_MIB), *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env=environment(),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(HOSTILE, lines, strict=True))


@pytest.mark.parametrize("case", HOSTILE)
def test_is_refused(folder: Path, told: dict[str, list[Any]], case: str) -> None:
    kind, message, hint, seconds = told[case]
    assert kind in ("FormatError", "UnsupportedError"), (kind, message)
    assert HOSTILE[case][1] in message
    assert message.startswith(f"{folder / str(list(HOSTILE).index(case))}.gguf: ")
    assert message.count(".gguf: ") == 1 and hint
    assert seconds < 1


def test_every_refusal_has_a_message_of_its_own() -> None:
    messages = [message for _, message in HOSTILE.values()]
    assert len(set(messages)) == len(messages)


PIECES = (  # of a header, each with the name that it has in an error
    (b"GGUF", "is not GGUF"),
    (pack("<I", 3), "the version"),
    (pack("<Q", 1), "the number of tensors"),
    (pack("<Q", 2), "the number of keys"),
    (pack("<Q", 1), "the length of key 0"),
    (b"k", "key 0"),
    (pack("<I", build.ARRAY), "the type of k"),
    (pack("<I", build.STRING), "the element type of the value of k"),
    (pack("<Q", 9), "the length of the value of k"),
    (build.text("word") * 9, "the value of k"),
    (pack("<Q", 4), "the length of key 1"),
    (b"name", "key 1"),
    (pack("<I", build.STRING), "the type of name"),
    (pack("<Q", 5), "the length of the value of name"),
    (b"llama", "the value of name"),
    (pack("<Q", 1), "the length of the name of tensor 0"),
    (b"t", "the name of tensor 0"),
    (pack("<I", 2), "the number of dimensions of t"),
    (pack("<2Q", 8, 2), "the shape of t"),
    (pack("<I", 0), "the type of t"),
    (pack("<Q", 0), "the offset of t"),
    (bytes(29 + 64), "the file is cut: the tensor t"),  # padding, data
)


@pytest.mark.parametrize("piece", range(len(PIECES)))
def test_cut_before_or_within_any_piece(tmp_path: Path, piece: int) -> None:
    """What is cut off is named, unless the counts already tell that it cannot be there."""
    path = tmp_path / "cut.gguf"
    before = b"".join(raw for raw, _ in PIECES[:piece])
    raw, name = PIECES[piece]
    for kept in {0, 1, len(raw) // 2, len(raw) - 1} - {len(raw)}:
        path.write_bytes(before + raw[:kept])
        size = len(before) + kept
        with pytest.raises(FormatError) as caught:
            open_gguf(path)
        message = str(caught.value).removeprefix(f"{path}: ")
        if size == 0:
            assert message == "the file is empty"
        elif size < 4:
            assert name in message
        else:
            assert f"the file has {size} bytes" in message or f"file of {size} bytes" in message
            assert name in message or "the header announces" in message


def test_the_whole_of_these_pieces_is_read(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(b"".join(raw for raw, _ in PIECES))
    checkpoint = open_gguf(path)
    assert checkpoint.metadata["k"] == ["word"] * 9
    assert checkpoint.tensors["t"].shape == (2, 8)


def test_a_name_in_an_error_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.gguf"
    name = "\x1b[2J\nerror: all is well"
    path.write_bytes(build.gguf([], [build.tensor(name, [8])] * 2, bytes(64)))
    assert main(["info", str(path)]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err and len(err.splitlines()) == 2
