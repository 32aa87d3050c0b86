"""Ctrl-C at every stage, slow storage, and conversations on a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli_tools import environment, interrupt, read_until, slow_run
from flexinfer.cli import main

WORDS = "one two three four five six seven eight nine ten " * 12


def left_behind(folder: Path) -> list[str]:
    """Temporary files, and shared memory of ours."""
    return [str(path) for path in (*folder.iterdir(), *Path("/dev/shm").glob("*flex*"))]


@pytest.mark.parametrize(
    ("stage", "argv", "delay_s"),
    [
        ("locking weights", ["Hi", "--ram", "180MiB"], 0.15),
        ("reading the prompt", [WORDS, "--ram", "110MiB"], 0.1),
    ],
)
def test_ctrl_c_while_loading_and_reading_the_prompt(
    stage: str, argv: list[str], delay_s: float, smollm_path: Path, tmp_path: Path
) -> None:
    """On slow storage, which is spoken of from the first second on, with an estimate."""
    with slow_run("run", smollm_path, *argv, delay_s=delay_s, folder=tmp_path) as process:
        read_until(process.stderr, stage.encode() + rb" \d+ % .* (left|expected)\n")
        code, seconds = interrupt(process)
    assert code == 130 and seconds < 2
    assert left_behind(tmp_path) == []


def test_ctrl_c_while_writing(smollm_path: Path, tmp_path: Path) -> None:
    argv = ("run", smollm_path, "Count to a hundred", "--ram", "110MiB")
    with slow_run(*argv, delay_s=0.005, folder=tmp_path) as process:
        read_until(process.stdout, b".")
        code, seconds = interrupt(process)
    assert code == 130 and seconds < 2
    assert left_behind(tmp_path) == []


# Ctrl-C when a module is about to be imported, the program being hardly begun.
INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
wanted = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("flexinfer", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module",
    ["flexinfer.cli", "argparse", "flexinfer.commands.run", "numpy", "flexinfer.llm", "tokenizers"],
)
def test_ctrl_c_before_the_program_has_begun(module: str, smollm_path: Path) -> None:
    argv = [module, "run", str(smollm_path), "Hi", "--ram", "140MiB", "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, *argv],
        capture_output=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("full", [True, False])
def test_notes_that_nobody_takes_cost_no_answer(full: bool, smollm_path: Path) -> None:
    """Standard error on a full disk, and a pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    stderr = os.open("/dev/full", os.O_WRONLY) if full else writing
    argv = [sys.executable, "-m", "flexinfer", "run", str(smollm_path), "Hi", "--max-tokens", "3"]
    told, wrong = (
        subprocess.run(
            [*argv, *more],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
            env=environment(),
        )
        for more in ([], ["--ram", "1MiB"])
    )
    for each in {stderr, writing}:
        os.close(each)
    assert told.returncode == 0 and told.stdout.strip()
    assert (wrong.returncode, wrong.stdout) == (2, b"")


def test_a_reader_that_leaves_ends_the_run_quietly(smollm_path: Path, tmp_path: Path) -> None:
    argv = ("run", smollm_path, "Count to a hundred", "--ram", "200MiB", "--quiet")
    with slow_run(*argv, delay_s=0, folder=tmp_path) as process:
        read_until(process.stdout, b".")
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.wait(timeout=30) == 0
        assert not process.stderr.read()


@pytest.mark.parametrize(("stream", "shown"), [("<&-", True), (">&-", False), ("2>&-", True)])
def test_without_a_standard_stream_the_rest_works(
    stream: str, shown: bool, smollm_path: Path
) -> None:
    command = f'"$0" -m flexinfer run "$1" Hi --max-tokens 2 --ram 140MiB --quiet {stream}'
    argv = ["sh", "-c", command, sys.executable, str(smollm_path)]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=60, env=environment())
    assert bool(done.stdout.strip()) is shown and done.stderr == b""


def test_output_that_finds_no_room_is_the_users_to_mend(smollm_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flexinfer", "info", smollm_path],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the output cannot be written: No space left")


def test_an_instruction_set_that_is_not_here_is_named(
    smollm_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEXINFER_ISA", "neon9")
    assert main(["plan", str(smollm_path)]) == 2
    assert "FLEXINFER_ISA is 'neon9'; available here: scalar" in capsys.readouterr().err


def test_threads_that_the_system_does_not_give_are_an_error(smollm_path: Path) -> None:
    """A thousand stacks in 2 GB of addresses."""
    command = 'ulimit -v 2000000; exec "$0" -m flexinfer plan "$1" --ram 300MiB --threads 1000'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(smollm_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: 1000 threads cannot be started: ")


def test_without_leave_to_pin_it_says_so_once_and_goes_on(smollm_path: Path) -> None:
    """64 KiB as in containers; CAP_IPC_LOCK is dropped, with which root pins without limit."""
    unprivileged = (
        "import ctypes, os, resource, sys; ctypes.CDLL(None).prctl(24, 14, 0, 0, 0);"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536));"
        "os.execv(sys.executable, [sys.executable, '-m', 'flexinfer', *sys.argv[1:]])"
    )
    for command in ("run", "plan"):
        argv = [str(smollm_path), "--ram", "140MiB"]
        argv += ["Hi", "--max-tokens", "2"] if command == "run" else []
        done = subprocess.run(
            [sys.executable, "-c", unprivileged, command, *argv],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=environment(),
        )
        assert (done.stderr + done.stdout).count("not pinned") == 1


class Terminal:
    """A terminal of 100 columns with a program in it."""

    def __init__(self, *argv: object) -> None:
        self._ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (30, 100))
        self.settings = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flexinfer", *map(str, argv)],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment(TERM="xterm"),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._unread = ""

    def expect(self, pattern: str, timeout_s: float = 20) -> str:
        """What was shown since the last call, up to the end of `pattern`."""
        end = time.monotonic() + timeout_s
        os.set_blocking(self._ours, False)
        while not (found := re.search(pattern, self._unread)):
            assert time.monotonic() < end, f"{pattern!r} did not come, but {self._unread!r}"
            try:
                self._unread += os.read(self._ours, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
        shown, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def left(self) -> tuple[int, bool]:
        """The exit code, and whether the terminal is as it was."""
        code = self.process.wait(timeout=5)
        return code, termios.tcgetattr(self._theirs) == self.settings

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


def _take_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*argv: object) -> Iterator[Terminal]:
    opened = Terminal(*argv)
    try:
        yield opened
    finally:
        opened.close()


def test_a_conversation(smollm_path: Path) -> None:
    """Turns, commands, a conversation that outgrows its context, Ctrl-C in an answer, the end."""
    with terminal("run", smollm_path, "--ram", "130MiB", "--ctx", 160, "--max-tokens", 40) as chat:
        chat.expect("> ")
        chat.type("Say hello.\n")
        first = chat.expect(r" read\b.*\n")
        assert "Hello" in first and "tokens/s" in first
        chat.expect("> ")
        chat.type("And now goodbye.\n")
        chat.expect(r" read\b.*\n.*> ")
        chat.type(WORDS + "\n")
        refused = chat.expect("hint:.*\n")
        assert re.search(r"error:.* the prompt has \d+ tokens, the context 160", refused)
        assert "/clear" in refused
        chat.type("/nonsense\n")
        chat.expect("no such command: /nonsense")
        chat.type("/clear\n")
        chat.type("Say hello.\n")
        assert "Hello" in chat.expect(r" read\b.*\n.*> ")
        chat.type("/exit\n")
        assert chat.left() == (0, True)


def test_ctrl_c_stops_an_answer_then_ends_the_chat(smollm_path: Path) -> None:
    with terminal("run", smollm_path, "--ram", "200MiB", "--max-tokens", 4000) as chat:
        assert "ends with the context, before --max-tokens 4000" in chat.expect("> ")
        chat.type("Write a very long story about a ship.\n")
        chat.expect("ship.*\n.*[a-z]{3}")
        chat.type("\x03")
        chat.expect("> ", timeout_s=2)
        chat.type("\x03")
        assert chat.left() == (130, True)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_that_is_told_to_end_restores_the_terminal(
    signum: signal.Signals, smollm_path: Path
) -> None:
    with terminal("run", smollm_path, "--ram", "200MiB") as chat:
        chat.expect("> ")
        chat.process.send_signal(signum)
        assert chat.left() == (128 + signum, True)


def test_a_bench_that_is_told_to_end_takes_its_child_along(smollm_path: Path) -> None:
    argv = ["bench", str(smollm_path), "--ram", "130MiB", "--ram", "140MiB", "--repeat", "500"]
    with subprocess.Popen(
        [sys.executable, "-m", "flexinfer", *argv], stdout=subprocess.PIPE, env=environment()
    ) as bench:
        read_until(bench.stdout, b"budget")
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        while not (child := children.read_text().split()):
            time.sleep(0.01)
        bench.terminate()
        assert bench.wait(timeout=10) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{child[0]}").exists()


def test_ctrl_d_ends_a_chat(smollm_path: Path) -> None:
    with terminal("run", smollm_path, "--ram", "200MiB") as chat:
        chat.expect("> ")
        chat.type("\x04")
        assert chat.left() == (0, True)


def test_a_run_on_a_terminal_leaves_it_clean(smollm_path: Path) -> None:
    argv = ("run", smollm_path, "Say hello.", "--ram", "110MiB", "--max-tokens", 8)
    with terminal(*argv) as shown:
        screen = shown.expect(r" read\b[^\n]*\n")
        assert shown.left() == (0, True)
    assert "reading the prompt" in screen or "locking weights" in screen
    final = re.sub(r"[^\n]*\r\x1b\[K", "", screen.replace("\r\n", "\n"))  # what stays to be seen
    assert "Hello" in final and "locking weights" not in final


def test_a_chat_has_no_json(smollm_path: Path) -> None:
    with terminal("run", smollm_path, "--json") as shown:
        shown.expect("error:.* --json cannot take effect in a chat")
        assert shown.left()[0] == 2


def test_colours_are_off_where_they_are_not_wanted(
    smollm_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        with terminal("info", "missing.gguf") as shown:
            assert ("\x1b[" in shown.expect("hint:.*\n")) is coloured
