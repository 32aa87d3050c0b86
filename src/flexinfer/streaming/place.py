"""Where a file lies: its file system, whether that takes direct reads, and how fast they are."""

import os
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from flexinfer.errors import ReadError
from flexinfer.memory.arena import Arena
from flexinfer.memory.cgroups import PROC, system_text, unescape
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.streaming.probe import measure_reader
from flexinfer.streaming.reader import Pread, Reader
from flexinfer.units import MiB

_TRIAL_BYTES = MiB  # of a temporary file: a moment's work even for a memory card


@dataclass(frozen=True, slots=True)
class FileSystem:
    kind: str
    device: str
    mount_point: str


@dataclass(frozen=True, slots=True)
class Place:
    """None is what was not tried."""

    path: str
    file_system: FileSystem | None
    direct: bool | None
    bytes_per_s: float | None


def file_system(path: Path, proc: Path = PROC) -> FileSystem | None:
    """That of the innermost mount that `path` lies in, of several there the last."""
    found, where = None, path.resolve()
    for line in system_text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point = unescape(before.split(" ")[4])
        kind, device, _ = after.split(" ", 2)
        inside = where.is_relative_to(point)
        if inside and (found is None or len(point) >= len(found.mount_point)):
            found = FileSystem(kind, unescape(device), point)
    return found


def place_of_file(path: Path, seconds: float, proc: Path = PROC, pread: Pread = os.preadv) -> Place:
    """Read the file for `seconds`. Raises ReadError."""
    with closing(Reader(path, pread)) as reader:
        bytes_per_s = measure_reader(reader, seconds=seconds).bytes_per_s
        return Place(str(path), file_system(path, proc), reader.direct, bytes_per_s)


def place_of_folder(folder: Path, proc: Path = PROC, pread: Pread = os.preadv) -> Place:
    """Try a direct read of a nameless temporary file, gone at once; speeds of it would mean little.

    Nothing is tried where no file can be made.
    """
    return Place(str(folder), file_system(folder, proc), _direct(folder, pread), None)


def _direct(folder: Path, pread: Pread) -> bool | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            return _direct_read(Path(f"/proc/self/fd/{file.fileno()}"), pread)
    except (OSError, ReadError):
        return None


def _direct_read(path: Path, pread: Pread) -> bool:
    with closing(Reader(path, pread)) as reader, Arena(BLOCK_BYTES) as arena:
        with arena.take(BLOCK_BYTES, BLOCK_BYTES).view() as memory:
            reader.read(0, BLOCK_BYTES, memory)
        return reader.direct
