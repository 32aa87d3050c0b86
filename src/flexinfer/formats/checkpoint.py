"""What every model file format gives: metadata and a table of tensors; never the tensors' data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flexinfer.formats.quants import BlockType


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
