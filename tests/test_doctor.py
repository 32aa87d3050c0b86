"""The doctor: where a model lies, the whole report, and the real machine."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cli_tools import flexinfer
from doctor_tools import FACTS, NAMES, PLAIN, THP, Machine, huge_pages, pinning
from flexinfer import _kernels
from flexinfer.cli import main
from flexinfer.commands import findings
from flexinfer.commands.console import Console
from flexinfer.commands.doctor import examine, show
from flexinfer.commands.findings import Mark
from flexinfer.memory import machine
from flexinfer.memory.budget import cpus_available
from flexinfer.memory.machine import Roots
from flexinfer.memory.trial import try_memory
from flexinfer.streaming.place import FileSystem, place_of_file, place_of_folder
from flexinfer.units import MiB


@pytest.fixture
def fake(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusing(file: int, memory: list[memoryview], offset: int) -> int:
    """A file system that refuses direct reads, as tmpfs long did."""
    if os.get_blocking(file) and direct(file):
        raise OSError(errno.EINVAL, "Invalid argument")
    return os.preadv(file, memory, offset)


def direct(file: int) -> bool:
    flags = Path(f"/proc/self/fdinfo/{file}").read_text().split("flags:")[1].split()[0]
    return bool(int(flags, 8) & os.O_DIRECT)


def test_tmpfs_without_direct_reads(
    fake: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "of a model"
    path.write_bytes(bytes(MiB))
    mounts = (fake.roots.proc / "self/mountinfo").read_text()
    point = str(tmp_path).replace(" ", "\\040")
    fake.proc("self/mountinfo", f"{mounts}30 25 0:27 / {point} rw - tmpfs tmpfs rw\n")
    place = place_of_file(path, 0.01, fake.roots.proc, refusing)
    assert place.file_system == FileSystem("tmpfs", "tmpfs", str(tmp_path))
    assert place.direct is False and place.bytes_per_s
    found = findings.judge_disk(place)
    assert found.mark == Mark.NOTE and "they take memory" in str(found.advice)
    assert "GB/s from tmpfs at " in found.text
    assert "direct reads are refused" in found.text
    on_disk = replace(place, file_system=FileSystem("fuse.sshfs", "host:/models", "/models"))
    assert "local ext4" in str(findings.judge_disk(on_disk).advice)
    assert "no direct I/O" in caplog.text


def test_a_folder_is_tried_with_a_file_that_leaves_nothing(
    fake: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    place = place_of_folder(folder, fake.roots.proc, refusing)
    assert (place.direct, place.bytes_per_s) == (False, None)
    assert place.file_system == FileSystem("ext4", "/dev/vda", "/")
    assert not list(folder.iterdir()) and "no direct I/O" in caplog.text
    untried = place_of_folder(tmp_path / "absent", fake.roots.proc)
    assert findings.judge_disk(untried).text == "ext4 on /dev/vda: not tried"


def test_every_fault_at_once_fits_in_80_columns(
    fake: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"system.slice/docker-{'0123456789abcdef' * 4}.scope"
    fake.proc("self/cgroup", f"0::/{long}\n")
    fake.group(long, cpu_max="50000 100000", memory_max=str(600 * MiB), memory_current="0")
    fake.sys(f"{THP}/enabled", "always madvise [never]\n")
    fake.memlock(65536, 65536)
    fake.proc("loadavg", "16 16 16 1/2 3\n")
    monkeypatch.setenv("FLEXINFER_ISA", "neon")
    monkeypatch.chdir(tmp_path)
    found = examine(fake.roots, PLAIN, None)
    by_name = {f.name: f for f in found}
    assert set(by_name) == NAMES
    assert by_name["instructions"].fatal and by_name["threads"].mark == Mark.PROBLEM
    judged = [huge_pages(fake), pinning(fake, pinned=False, swap=True)]
    with (tmp_path / "out").open("w+") as out:
        lines = show(PLAIN, [*found, *judged], Console(out))
    unit = long.rpartition("/")[2]
    assert f"         → `systemctl set-property {unit} CPUQuota=`" in lines  # whole, to be copied
    assert [line for line in lines if len(line) > 80 and unit not in line] == []
    assert lines[-1] == "3 problems and 3 notes: the arrows say what to do."


def test_the_threads_told_are_those_used() -> None:
    assert machine.threads(Roots()).threads == cpus_available()


def test_memory_is_really_tried() -> None:
    context = _kernels.Context(1)
    trial = try_memory(context, 8 * MiB, 64 * MiB)
    assert (trial.touched_bytes, trial.mapped_bytes) == (4 * MiB, 64 * MiB)
    assert trial.huge_bytes <= trial.touched_bytes and trial.refused is None
    assert trial.read_bytes_per_s > 1e8
    beyond = try_memory(context, 0, 1 << 60)
    assert beyond.mapped_bytes == beyond.touched_bytes == 2 * MiB
    found = findings.judge_address_space(beyond)
    assert found is not None and found.text.startswith("cannot map ")


def test_the_real_machine_as_json(smollm_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(smollm_path), "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == "" and told["runs"] is True and told["kernel"] == os.uname().release
    found = told.pop("findings")
    assert set(told) == {
        "processor",
        "virtual",
        "architecture",
        "kernel",
        "runs",
        "notes",
        "problems",
    }
    assert NAMES | {"model"} <= set(found) <= NAMES | {"model", "clock", "address_space"}
    for name, facts in FACTS.items():
        assert set(found[name]) == facts | {"mark", "text", "advice"}
    marks = [finding["mark"] for finding in found.values()]
    assert (marks.count("note"), marks.count("problem")) == (told["notes"], told["problems"])
    assert found["disk"]["bytes_per_s"] > 1e6
    assert found["disk"]["path"] == str(smollm_path)
    assert found["model"]["weights_bytes"] <= smollm_path.stat().st_size
    assert found["memory_speed"]["bytes_per_s"] > 1e8


def test_the_real_machine_in_80_columns(tmp_path: Path) -> None:
    done = flexinfer("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    for name in NAMES:
        assert f"  {name.replace('_', ' ')}  " in done.stdout


def test_what_makes_running_impossible_makes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smollm_path: Path
) -> None:
    monkeypatch.setenv("FLEXINFER_ISA", "neon")
    assert main(["doctor", "--json"]) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["runs"] is False and told["findings"]["instructions"]["chosen"] is None
    error, hint = err.splitlines()
    assert error.startswith("error: nothing can run here: FLEXINFER_ISA is 'neon'")
    assert hint == "hint: `unset FLEXINFER_ISA`, or set it to one of these"
    assert main(["plan", str(smollm_path)]) == 2
    assert "FLEXINFER_ISA is 'neon'; available here: " in capsys.readouterr().err


def test_a_model_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "absent.gguf"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "absent.gguf" in err
