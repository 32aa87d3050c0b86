"""What every model file format gives: metadata and a table of tensors; never the tensors' data."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from flexinfer.errors import ReadError, UnsupportedError
from flexinfer.formats.quants import BLOCK_TYPES, BlockType

VECTOR_TYPES = ("F32", "F16", "BF16")  # norms and biases: float32 once loaded


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells a file from one put in its place, and from itself before it was written to."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def check(self, path: Path, fd: int | None = None) -> None:
        """Raises ReadError where `path`, or the open file `fd`, is no longer that file."""
        try:
            now = self.of(path.stat() if fd is None else os.fstat(fd))
        except OSError as error:
            raise ReadError(
                f"{path}: is no longer there: {error.strerror}",
                "was it removed, or its file system taken away? Start again when it is back",
            ) from error
        if now != self:
            raise ReadError(
                f"{path}: was replaced, truncated or written to while in use "
                f"({self.size_bytes} bytes when opened)",
                "start again with the new file",
            )


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is outermost first: a matrix is (rows, columns)."""

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    path: Path
    offset_bytes: int  # from the start of the file
    size_bytes: int

    @property
    def rows(self) -> int:
        return self.size_bytes // self.row_bytes

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def row_bytes(self) -> int:
        return self.block_type.row_bytes(self.columns)

    def part(self, first: int, count: int) -> Self:
        """Rows `first` .. of a matrix, or elements of a vector, as a tensor of its own."""
        matrix = len(self.shape) > 1
        step = self.row_bytes if matrix else self.block_type.row_bytes(1)
        return replace(
            self,
            shape=(count, *self.shape[1:]),
            offset_bytes=self.offset_bytes + first * step,
            size_bytes=count * step,
        )


class Checkpoint(Protocol):
    """A model file (or several) with its headers read."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Scalars and strings as Python values; arrays decoded on access, not kept."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def check(self) -> None:
        """Raises ReadError where a file is no longer the one whose header was read."""
        ...


def check_computable(tensors: Iterable[TensorInfo]) -> None:
    """Raises UnsupportedError, naming types and tensors, unless all can be computed with.

    Matrices need a kernel for their block type; vectors are converted to float32 when loaded.
    """
    beyond: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        block_type = tensor.block_type
        if not (
            block_type.has_kernel or (len(tensor.shape) == 1 and block_type.name in VECTOR_TYPES)
        ):
            beyond.setdefault(block_type.name, []).append(tensor)
    if beyond:
        found = "; ".join(
            f"{name} of {of[0].name}" + (f" and {len(of) - 1} more" if len(of) > 1 else "")
            for name, of in beyond.items()
        )
        path = next(iter(beyond.values()))[0].path
        able = ", ".join(t.name for t in BLOCK_TYPES.values() if t.has_kernel)
        raise UnsupportedError(
            f"{path}: tensors of a type that FlexInfer cannot compute: {found}",
            f"use a file quantised as one of {able}",
        )
