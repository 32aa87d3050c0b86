"""Stages: each a child process with a time limit of its own, so that one that fails or hangs leaves
the others their turn.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GRACE_S = 5
SHOWN_LINES = 6  # of what a child wrote before it failed

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage gave: `rows` also where it failed later on; `error` None where all is well."""

    name: str
    seconds: float
    rows: tuple[Row, ...] = ()
    error: str | None = None
    note: str = ""
    code: int | None = None  # the child's; None where it was ended

    @property
    def ok(self) -> bool:
        return self.error is None


class Runner:
    """Runs children of this folder, no longer than `limit_s` in all. Any thread may."""

    def __init__(self, folder: Path, package: Path | None, limit_s: float) -> None:
        self._folder = folder
        self._ends = time.monotonic() + limit_s
        self._environment = os.environ | {"XDG_CACHE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
        self._environment["TRITON_CACHE_DIR"] = str(folder / "triton")
        self._environment.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)  # some containers set it
        if package is not None:
            paths = [str(package), os.environ.get("PYTHONPATH", "")]
            self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def script(
        self, name: str, script: str, arguments: Sequence[object], limit_s: float
    ) -> Outcome:
        """`script` of this folder; each line of its output is a row."""
        return self.command(name, [str(HERE / script), *map(str, arguments)], limit_s)

    def command(self, name: str, arguments: Sequence[str], limit_s: float) -> Outcome:
        """Of this Python. A row may say `error` itself."""
        limit_s = min(limit_s, self._ends - time.monotonic())
        if limit_s <= 0:
            return Outcome(name, 0.0, error="not run: the time for the whole check was over")
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            return self._run(name, arguments, limit_s, Path(folder))

    def _run(self, name: str, arguments: Sequence[str], limit_s: float, folder: Path) -> Outcome:
        started = time.monotonic()
        out, err = folder / "stdout", folder / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
            try:
                code: int | None = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child)
        seconds = time.monotonic() - started
        rows = tuple(_rows(out.read_text(errors="replace")))
        error = None
        if code is None:
            error = f"took more than its {limit_s:.0f} s, and was ended"
        elif code:
            error = f"ended with {_ending(code)}: {_last_words(err)}"
        elif errors := [row["error"] for row in rows if "error" in row]:
            error = "; ".join(errors)
        return Outcome(name, seconds, rows, error, code=code)


def _rows(text: str) -> list[Row]:
    """The JSON objects among the lines; a line that was cut short is none."""
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(child.pid, number)
            try:
                child.wait(GRACE_S)
                return
            except subprocess.TimeoutExpired:
                continue


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last_words(path: Path) -> str:
    """The last line, which says what it was, then those before it."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join([*lines[-1:], *lines[-SHOWN_LINES:-1]]) or "nothing was said"
