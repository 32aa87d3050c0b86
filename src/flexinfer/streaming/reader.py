"""Positioned reads of a file past the page cache, into memory aligned for it."""

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from flexinfer.errors import ReadError
from flexinfer.formats.checkpoint import FileIdentity
from flexinfer.memory.arena import HUGE_PAGE_BYTES, round_up
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.units import MiB

REQUEST_BYTES = 4 * MiB  # payload of a full request
PIECE_BYTES = REQUEST_BYTES + 2 * BLOCK_BYTES  # the most in one call: ragged ends, too

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_log = logging.getLogger(__name__)

Pread = Callable[[int, list[memoryview], int], int]


def enclosing_bytes(offset_bytes: int, size_bytes: int) -> int:
    """Bytes of the whole blocks that a range of a file lies in."""
    start = offset_bytes - offset_bytes % BLOCK_BYTES
    return round_up(offset_bytes + size_bytes, BLOCK_BYTES) - start


class Reader:
    """One file, read by any number of threads.

    Where direct I/O is refused, when opening or when reading (tmpfs, some network and user-space
    file systems), reads are buffered and their pages dropped afterwards; this is logged once.
    `pread` stands for os.preadv in tests. Raises ReadError, from reads too.
    """

    def __init__(self, path: Path, pread: Pread = os.preadv) -> None:
        self.path = path.absolute()
        self._pread = pread
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._direct = True
        self._file = -1
        try:
            self._file = self._open()
            self._identity = FileIdentity.of(os.fstat(self._file))
        except OSError as error:
            raise ReadError(
                f"{path}: cannot be opened: {error.strerror}", "check the path and its permissions"
            ) from error

    @property
    def read_bytes(self) -> int:
        """Bytes really read, those around the payloads included."""
        return self._read_bytes

    @property
    def direct(self) -> bool:
        """Whether reads go past the page cache (as far as known by now)."""
        return self._direct

    @property
    def file_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._identity.size_bytes

    def read(self, offset_bytes: int, size_bytes: int, memory: memoryview) -> int:
        """Read a range of the file into `memory`; returns where in it the range starts.

        `memory` is aligned to BLOCK_BYTES and takes `enclosing_bytes` of it. Raises ReadError.
        """
        start = offset_bytes % BLOCK_BYTES
        begin = offset_bytes - start
        length = enclosing_bytes(offset_bytes, size_bytes)
        assert length <= len(memory)
        done = 0
        while done < start + size_bytes:
            piece = min(PIECE_BYTES, length - done)
            got = self._read_piece(begin + done, memory[done : done + piece])
            done += got
            # Only the file's end may cut a read, and the range must lie before it.
            if got < piece and done < start + size_bytes:
                self.check()
                raise ReadError(
                    f"{self.path}: short read at offset {begin + done - got}: "
                    f"{piece} bytes expected, {got} got",
                    "the file is shorter than its header says, or its storage fails",
                )
        with self._lock:
            self._read_bytes += done
        return start

    def check(self) -> None:
        """Raises ReadError where the file is no longer the one opened, or was written to."""
        self._identity.check(self.path)
        self._identity.check(self.path, self._file)

    def close(self) -> None:
        """Close the file. No read may be under way."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(self.path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        file = os.open(self.path, flags)
        self._fall_back()
        return file

    def _read_piece(self, offset_bytes: int, memory: memoryview) -> int:
        while True:
            direct = self._direct
            try:
                got = self._pread(self._file, [memory], offset_bytes)
            except InterruptedError:
                continue
            except OSError as error:
                if direct and error.errno in _REFUSED:
                    self._fall_back()
                    continue
                raise ReadError(
                    f"{self.path}: reading {len(memory)} bytes at offset {offset_bytes} failed: "
                    f"{error.strerror}",
                    "look at the disk and the connection to it, and try again",
                ) from error
            if not direct:
                # Units of the cache may straddle pieces; one is dropped only where it lies within.
                begin = offset_bytes - offset_bytes % HUGE_PAGE_BYTES
                length = offset_bytes + got - begin
                os.posix_fadvise(self._file, begin, length, os.POSIX_FADV_DONTNEED)
            return got

    def _fall_back(self) -> None:
        with self._lock:
            if not self._direct:
                return
            if self._file >= 0:
                flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
                fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self._direct = False
        _log.warning("%s: no direct I/O on this file system; reads are buffered", self.path)
