"""Loading what stays: locked rows in file order, each interleaved while the next ones are read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flexinfer.errors import ReadError, UnsupportedError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.memory.arena import Arena
from flexinfer.planner.placement import BLOCK_BYTES, GROUP_ROWS, PlacedMatrix, Placement, Request
from flexinfer.streaming.prefetcher import Prefetcher
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring
from flexinfer.units import MiB

_GAP_BYTES = MiB // 16  # reading over as much costs less than another request

# type id, source address, destination address, rows, columns
Interleave = Callable[[int, int, int, int, int], None]
Progress = Callable[[int, int], None]  # done bytes, total bytes


def lock_weights(
    placement: Placement,
    readers: Mapping[Path, Reader],
    arena: Arena,
    ring: Ring,
    interleave: Interleave,
    progress: Progress = lambda done_bytes, total_bytes: None,
    io_threads: int = 2,
) -> tuple[int, ...]:
    """Load the locked rows of every matrix; returns where each one's locked part is, 0 for none.

    Uses the whole ring meanwhile. Raises ReadError; can be interrupted at any segment.
    """
    addresses = tuple(
        arena.take(m.locked_bytes).address if m.locked_rows else 0 for m in placement.matrices
    )
    loads = tuple(_loads(placement, ring.slot_bytes - 2 * BLOCK_BYTES))
    total = sum(part.size_bytes for load in loads for part in load.parts)
    done = 0
    if loads:
        progress(done, total)  # before the first read, which may take its time
    requests = [load.request for load in loads]
    with closing(Prefetcher(requests, readers, ring, io_threads, wrap=False)) as stream:
        for index, load in enumerate(loads):
            source = stream.take(index)
            for part in load.parts:
                tensor = part.placed.matrix.tensor
                interleave(
                    tensor.block_type.ggml_id,
                    source + part.offset_bytes - load.request.offset_bytes,
                    addresses[part.index] + part.row * tensor.row_bytes,
                    part.rows,
                    tensor.columns,
                )
                done += part.size_bytes
            stream.release(index)
            progress(done, total)
    return addresses


def read_vector(tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """A small tensor (F32, F16, BF16) as float32 in its shape. ReadError, UnsupportedError."""
    try:
        with tensor.path.open("rb", buffering=0) as file:
            file.seek(tensor.offset_bytes)
            data = file.read(tensor.size_bytes)
    except OSError as error:
        raise ReadError(
            f"{tensor.path}: reading {tensor.name} failed: {error.strerror}",
            "check that the file is still there and its disk is sound",
        ) from error
    if len(data) != tensor.size_bytes:
        raise ReadError(
            f"{tensor.path}: short read of {tensor.name} at offset {tensor.offset_bytes}: "
            f"{tensor.size_bytes} bytes expected, {len(data)} got",
            "the file was truncated while in use; restore it and start again",
        )
    match tensor.block_type.name:
        case "F32":
            values = np.frombuffer(data, "<f4")
        case "F16":
            values = np.frombuffer(data, "<f2")
        case "BF16":
            values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        case other:
            raise UnsupportedError(
                f"{tensor.path}: {tensor.name} is {other}, not F32, F16 or BF16",
                "convert the model again, its norms and biases as F32",
            )
    return values.astype(np.float32).reshape(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Part:
    """A row range of one matrix, contiguous in the file."""

    index: int  # of the matrix in the placement
    placed: PlacedMatrix
    row: int
    rows: int

    @property
    def offset_bytes(self) -> int:
        tensor = self.placed.matrix.tensor
        return tensor.offset_bytes + self.row * tensor.row_bytes

    @property
    def size_bytes(self) -> int:
        return self.rows * self.placed.matrix.tensor.row_bytes


@dataclass(frozen=True, slots=True)
class _Load:
    """One read and the parts that it brings."""

    request: Request
    parts: tuple[_Part, ...]


def _loads(placement: Placement, limit_bytes: int) -> Iterator[_Load]:
    """All locked rows in file order, in reads of up to `limit_bytes`; neighbours share one."""
    pending: list[_Part] = []
    for part in _parts(placement, limit_bytes):
        if pending and not _joins(pending, part, limit_bytes):
            yield _load(pending)
            pending = []
        pending.append(part)
    if pending:
        yield _load(pending)


def _parts(placement: Placement, limit_bytes: int) -> Iterator[_Part]:
    def position(item: tuple[int, PlacedMatrix]) -> tuple[Path, int]:
        tensor = item[1].matrix.tensor
        return tensor.path, tensor.offset_bytes

    for index, placed in sorted(enumerate(placement.matrices), key=position):
        group_bytes = GROUP_ROWS * placed.matrix.tensor.row_bytes
        step = max(1, limit_bytes // group_bytes) * GROUP_ROWS
        for row in range(0, placed.locked_rows, step):
            yield _Part(index, placed, row, min(step, placed.locked_rows - row))


def _joins(pending: list[_Part], part: _Part, limit_bytes: int) -> bool:
    first, last = pending[0], pending[-1]
    gap = part.offset_bytes - (last.offset_bytes + last.size_bytes)
    return (
        first.placed.matrix.tensor.path == part.placed.matrix.tensor.path
        and 0 <= gap <= _GAP_BYTES
        and part.offset_bytes + part.size_bytes - first.offset_bytes <= limit_bytes
    )


def _load(parts: list[_Part]) -> _Load:
    first, last = parts[0], parts[-1]
    end = last.offset_bytes + last.size_bytes
    path = first.placed.matrix.tensor.path
    return _Load(Request(path, first.offset_bytes, end - first.offset_bytes), tuple(parts))
