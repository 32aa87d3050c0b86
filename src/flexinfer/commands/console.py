"""What people see on stderr: notes, warnings, errors, and one status line rewritten in place."""

import os
import time
from typing import TextIO

REFRESH_S = 0.1  # of the status line
BOLD, DIM, RED, CYAN, GREEN, YELLOW = "1", "2", "1;31", "36", "32", "33"


class Console:
    """Writes to `stream` only. Control sequences are for terminals; colours also heed NO_COLOR."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream
        self.quiet = quiet
        self.verbose = verbose
        self.live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self.live and not os.environ.get("NO_COLOR")
        self._status = False
        self._shown_at = 0.0

    def say(self, text: str) -> None:
        if not self.quiet:
            self._write(text)

    def aside(self, text: str) -> None:
        """A note that matters less than what stands around it."""
        self.say(self.painted(DIM, text))

    def warn(self, text: str) -> None:
        self.say(f"{self.painted(BOLD, 'warning:')} {text}")

    def error(self, message: str, hint: str | None) -> None:
        """The two-line form of every error, which may quote a file; also when quiet."""
        self._write(f"{self.painted(RED, 'error:')} {printable(message)}")
        if hint:
            self._write(f"{self.painted(CYAN, 'hint:')} {printable(hint)}")

    def status(self, text: str) -> None:
        """Show `text` in place of the former status; on a terminal only, and not too often."""
        now = time.perf_counter()
        if not self.live or self.quiet or (self._status and now - self._shown_at < REFRESH_S):
            return
        self._shown_at, self._status = now, True
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._put(f"\r\x1b[K{self.painted(DIM, text[: columns - 1])}")

    def clear(self) -> None:
        """Take the status line away."""
        if self._status:
            self._status = False
            self._put("\r\x1b[K")

    def _write(self, text: str) -> None:
        self.clear()
        self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        """Where it cannot be written any more, to a full disk or a pipe that nobody reads, it is
        dropped: the answer on standard output, and the exit code, do not depend on it.
        """
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def painted(self, code: str, text: str) -> str:
        """`text` in a colour, where there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def printable(text: str) -> str:
    """Text that may come from a model file, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
