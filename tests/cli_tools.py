"""Running the command line as people do: in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# A file system that takes its time: every read of weights waits first.
SLOW_READS = """
import os, sys, time
from flexinfer.streaming.reader import Reader
read, delay_s = Reader.read, float(os.environ["READ_DELAY_S"])
def slowly(self, *args):
    time.sleep(delay_s)
    return read(self, *args)
Reader.read = slowly
from flexinfer.cli import main
sys.exit(main())
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def flexinfer(
    *argv: object, stdin: bytes | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; without `stdin`, an empty one."""
    done = subprocess.run(
        [sys.executable, "-m", "flexinfer", *map(str, argv)],
        input=stdin or b"",
        capture_output=True,
        timeout=100,
        check=False,
        env=environment(**env),
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@contextmanager
def slow_run(*argv: object, delay_s: float, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a command whose reads take `delay_s` longer each; temporary files go to `folder`."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_READS, *map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(READ_DELAY_S=str(delay_s), TMPDIR=str(folder)),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: IO[bytes] | None, pattern: bytes, timeout_s: float = 30) -> bytes:
    """What comes until it matches `pattern`."""
    assert stream is not None
    seen, end = b"", time.monotonic() + timeout_s
    os.set_blocking(stream.fileno(), False)
    while time.monotonic() < end:
        piece = stream.read()
        seen += piece or b""
        if re.search(pattern, seen):
            return seen
        time.sleep(0.01)
    raise AssertionError(f"{pattern!r} did not come, but {seen!r}")


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Ctrl-C: the exit code and how long it took to come."""
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    return process.returncode, time.monotonic() - started
