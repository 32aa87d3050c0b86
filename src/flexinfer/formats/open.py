"""Opens a model, whatever its format."""

import stat
from pathlib import Path

from flexinfer.errors import FormatError
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.gguf import open_gguf
from flexinfer.formats.gguf_shards import is_shard, open_shards


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the headers of a model, given by any of its files.

    Raises FormatError, UnsupportedError or ReadError.
    """
    try:
        path = Path(path)
    except TypeError as error:
        raise FormatError(f"{path!r:.80} is no path", "give the path of a .gguf file") from error
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise FormatError(f"{path}: no such file", "check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise FormatError(f"{path}: is a directory", "give the path of a .gguf file in it")
    if not stat.S_ISREG(mode):
        raise FormatError(f"{path}: is not a regular file", "give the path of a .gguf file")
    try:
        checkpoint = open_gguf(path)
        return open_shards(checkpoint) if is_shard(checkpoint) else checkpoint
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> FormatError:
    reason = error.strerror if isinstance(error, OSError) else error
    return FormatError(f"{path}: cannot be read: {reason}", "check the path and its permissions")
