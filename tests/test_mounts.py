"""Models on real file systems of every kind, and what becomes of a run when one fails or goes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_tools import environment, flexinfer
from engine_tools import locking
from factory import make_gguf
from flexinfer import LLM, ReadError, SamplingParams
from flexinfer.cli import main
from flexinfer.executor.model import open_model
from flexinfer.streaming.place import file_system
from flexinfer.units import MiB
from mounts import Mounts, lacking

ARGV = ("a b c", "--raw", "--ram", "140MiB", "--max-tokens", 6, "--threads", 2)
PROMPT = [1, *range(40, 60)]
NAME = "größe 7b.gguf"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / NAME
    make_gguf(path, "llama", block_type="Q8_0", intermediate_size=512, vocab_size=3000)
    return path


@pytest.fixture(scope="module")
def text(model: Path) -> str:
    """From the plain file."""
    done = flexinfer("run", model, *ARGV)
    assert done.returncode == 0 and "warning" not in done.stderr
    return done.stdout


def put(model: Path, folder: Path) -> Path:
    shutil.copy(model, folder)
    with (folder / NAME).open("rb") as copy:
        os.fsync(copy.fileno())
    return folder / NAME


def tokens(llm: LLM, prompt: list[int] = PROMPT) -> list[int]:
    params = SamplingParams(max_tokens=6, ignore_end=True)
    return list(llm.generate(prompt, params).token_ids)


PLACES: dict[str, tuple[Callable[[Mounts, Path], Path], str, bool | None]] = {
    "ext4": (lambda m, model: put(model, m.image("ext4")), "ext4", True),
    "sectors of 4 KiB": (lambda m, model: put(model, m.image("ext4", 4096)), "ext4", True),
    "xfs": (lambda m, model: put(model, m.image("xfs")), "xfs", True),
    "btrfs": (lambda m, model: put(model, m.image("btrfs")), "btrfs", True),
    "squashfs": (lambda m, model: m.squashfs(model.parent) / NAME, "squashfs", False),
    "overlay": (lambda m, model: m.overlay(model.parent) / NAME, "overlay", True),
    "overlay on ramfs": (
        lambda m, model: m.overlay(put(model, m.memory("ramfs")).parent) / NAME,
        "overlay",
        False,
    ),
    "fuse": (lambda m, model: m.fuse(model.parent)[0] / NAME, "fuse.fuse-overlayfs", True),
    "ramfs": (lambda m, model: put(model, m.memory("ramfs")), "ramfs", False),
    # Whether it takes direct reads depends on the kernel.
    "tmpfs": (lambda m, model: put(model, m.memory("tmpfs")), "tmpfs", None),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_same_text_wherever_the_model_lies(
    place: str,
    mounts: Mounts,
    model: Path,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The doctor and the run say alike whether reads are direct; one warning where they are not."""
    make, kind, direct = PLACES[place]
    path = make(mounts, model)
    assert main(["doctor", str(path), "--json"]) == 0
    disk = json.loads(capsys.readouterr().out)["findings"]["disk"]
    point = path.parent
    assert (disk["file_system"]["kind"], disk["file_system"]["mount_point"]) == (kind, str(point))
    direct = disk["direct"] if direct is None else direct
    assert disk["direct"] is direct
    done = flexinfer("run", path, *ARGV)
    assert (done.returncode, done.stdout) == (0, text)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    refused = "warning: direct reads are refused here: reading through the page cache"
    assert [line.startswith(refused) for line in warnings] == [True] * (not direct)
    with locking(open_model(model), 0.4) as llm:
        expected = tokens(llm)
    with locking(open_model(path), 0.4) as llm:
        assert llm.plan.placement.requests and tokens(llm) == expected


# --- a disk that fails in the middle of a run ---


def test_a_block_that_cannot_be_read_is_an_error_and_reading_it_again_is_none(
    mounts: Mounts, model: Path
) -> None:
    """btrfs knows each block's checksum: what was changed in its image reads as EIO."""
    point = mounts.image("btrfs")
    path = put(model, point)
    opened = open_model(path)
    tensor = opened.weights.matrices[3].tensor
    first = model.read_bytes()[tensor.offset_bytes + 64 :][:32]
    with locking(opened, 0) as llm:
        expected = tokens(llm)
        with mounts.image_of(point).open("r+b") as image:
            at = image.read().find(first)
            for content, fails in ((bytes(32), True), (first, False)):
                image.seek(at)
                image.write(content)
                image.flush()
                if fails:
                    with pytest.raises(ReadError, match=r"failed: Input/output error$") as caught:
                        tokens(llm)
                    assert str(path) in str(caught.value) and caught.value.hint
                else:
                    assert tokens(llm) == expected


def test_a_block_that_cannot_be_read_ends_a_command_with_2(mounts: Mounts, model: Path) -> None:
    point = mounts.image("btrfs")
    path = put(model, point)
    tensor = open_model(path).weights.matrices[3].tensor
    first = model.read_bytes()[tensor.offset_bytes + 64 :][:32]
    with mounts.image_of(point).open("r+b") as image:
        image.seek(image.read().find(first))
        image.write(bytes(32))
    done = flexinfer("run", path, *ARGV)
    assert (done.returncode, done.stdout) == (2, "")
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: {path}: ") and error.endswith("Input/output error")


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_server_of_files_that_dies(mounts: Mounts, model: Path, share: float) -> None:
    """Weights that stream are missed, and so are rows of the embedding where all is locked."""
    point, daemon = mounts.fuse(model.parent)
    with locking(open_model(point / NAME), share) as llm, (point / NAME).open("rb") as file:
        assert tokens(llm)
        daemon.kill()
        daemon.wait()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what the header's read left
        with pytest.raises(ReadError, match="not connected") as caught:
            tokens(llm, prompt=[5, *PROMPT])
        assert NAME in str(caught.value) and caught.value.hint


def test_a_file_system_that_is_taken_away(mounts: Mounts, model: Path) -> None:
    point = mounts.image("ext4")
    path = put(model, point)
    with locking(open_model(path), 0) as llm:
        assert tokens(llm)
        mounts.take_away(point)
        with pytest.raises(ReadError, match=r"is no longer there: No such file"):
            tokens(llm)


# --- a full disk ---


def test_output_to_a_full_disk(mounts: Mounts, model: Path) -> None:
    full = mounts.memory("tmpfs", "size=4k")
    with (full / "answer").open("wb") as out:
        out.write(bytes(4096))
        out.flush()
        done = subprocess.run(
            [sys.executable, "-m", "flexinfer", "run", model, *map(str, ARGV)],
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env=environment(),
        )
    assert done.returncode == 2
    assert b"error: the output cannot be written: No space left" in done.stderr


def test_the_doctor_leaves_nothing_on_a_full_disk(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = mounts.memory("tmpfs", "size=64k")
    monkeypatch.chdir(full)
    assert main(["doctor", "--json"]) == 0
    disk = json.loads(capsys.readouterr().out)["findings"]["disk"]
    assert (disk["direct"], disk["file_system"]["kind"]) == (None, "tmpfs")
    assert not list(full.iterdir())


# --- other mounts of the machine ---


def test_a_mount_whose_name_is_not_utf_8(mounts: Mounts, model: Path, text: str) -> None:
    """In a mount namespace of its own, since everything on the machine would see it."""
    if shutil.which("unshare") is None:
        lacking("there is no unshare")
    folder = os.fsencode(mounts.folder) + b"/caf\xe9"
    Path(os.fsdecode(folder)).mkdir()
    script = (
        'mount -t tmpfs tmpfs "$1" && cp "$2" "$1/model.gguf" && '
        'cd "$1" && "$0" -m flexinfer doctor model.gguf >&2 && shift 2 && '
        'exec "$0" -m flexinfer run model.gguf "$@"'
    )
    command = [os.fsencode(arg) for arg in ("unshare", "--mount", "sh", "-c", script)]
    argv = [
        os.fsencode(sys.executable),
        folder,
        os.fsencode(model),
        *map(os.fsencode, map(str, ARGV)),
    ]
    done = subprocess.run(
        [*command, *argv], capture_output=True, check=False, timeout=60, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == text
    assert b"tmpfs" in done.stderr and b"error" not in done.stderr


def test_mounts_lie_in_the_folder_of_the_test(mounts: Mounts) -> None:
    point = mounts.memory("tmpfs")
    found = file_system(point)
    assert found is not None and found.mount_point == str(point)
    assert os.statvfs(point).f_bsize <= MiB
