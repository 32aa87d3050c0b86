"""Locked rows land in their places, in file order, whatever shares the file with them."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import ReadError, UnsupportedError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.arena import Arena
from flexinfer.models.weights import Matrix
from flexinfer.planner.placement import PlacedMatrix, Placement
from flexinfer.streaming.locking import lock_weights, read_vector
from flexinfer.streaming.reader import PIECE_BYTES, Pread, Reader
from flexinfer.units import MiB
from streaming_tools import faulty, make_ring, write_random

F32, F16, Q4_0, Q6_K, BF16 = (BLOCK_TYPES[n] for n in (0, 1, 2, 14, 30))
SIZE = 6 * MiB


@dataclass(frozen=True)
class Copied:
    """A call of the stand-in for the kernel that interleaves."""

    type_id: int
    source: int
    destination: int
    rows: int
    columns: int


class Copier:
    def __init__(self) -> None:
        self.calls: list[Copied] = []

    def __call__(
        self, type_id: int, source: int, destination: int, rows: int, columns: int
    ) -> None:
        self.calls.append(Copied(type_id, source, destination, rows, columns))
        ctypes.memmove(destination, source, rows * BLOCK_TYPES[type_id].row_bytes(columns))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("locking") / "weights"
    return path, write_random(path, SIZE)


def place(
    path: Path, offset: int, kind: BlockType, rows: int, columns: int, locked: int
) -> PlacedMatrix:
    size = rows * kind.row_bytes(columns)
    tensor = TensorInfo(f"t{offset}", (rows, columns), kind, path, offset, size)
    return PlacedMatrix(Matrix(tensor, 0, "m"), locked, ())


def lock(
    placed: list[PlacedMatrix], slot_bytes: int = PIECE_BYTES, pread: Pread | None = None
) -> tuple[list[bytes], Copier, list[tuple[int, int]]]:
    """The locked bytes of each matrix, the copies made, the progress told."""
    placement = Placement(tuple(placed), ())
    paths = {m.matrix.tensor.path for m in placed}
    readers = {p: Reader(p, pread) if pread else Reader(p) for p in paths}
    arena = Arena(placement.locked_bytes + 64 * len(placed))
    told: list[tuple[int, int]] = []
    copier = Copier()
    ring = make_ring(3, slot_bytes)
    addresses = lock_weights(
        placement, readers, arena, ring, copier, lambda done, total: told.append((done, total))
    )
    for reader in readers.values():
        reader.close()
    sizes = [m.locked_rows * m.matrix.tensor.row_bytes for m in placed]
    found = [ctypes.string_at(a, n) if a else b"" for a, n in zip(addresses, sizes, strict=True)]
    return found, copier, told


def expected(contents: bytes, placed: PlacedMatrix) -> bytes:
    tensor = placed.matrix.tensor
    start = tensor.offset_bytes
    return contents[start : start + placed.locked_rows * tensor.row_bytes]


@st.composite
def files(draw: st.DrawFn) -> list[tuple[int, BlockType, int, int, int]]:
    """Matrices in file order, with gaps of any size: offset, type, rows, columns, locked rows."""
    found, offset = [], 0
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from([F32, Q4_0, Q6_K]))
        offset += draw(st.sampled_from([0, 32, 5000, 65536, 65568, 300_000]))
        rows, columns = draw(st.integers(1, 200)), 256 * draw(st.integers(1, 3))
        groups = draw(st.integers(0, -(-rows // 16)))
        found.append((offset, kind, rows, columns, min(rows, 16 * groups)))
        offset += rows * kind.row_bytes(columns)
    return found if offset <= SIZE else []


@settings(max_examples=40, deadline=None)
@given(files(), st.randoms(), st.sampled_from([64 * 1024, 256 * 1024, PIECE_BYTES]))
def test_every_locked_row_lands_in_its_place(
    file: tuple[Path, bytes],
    matrices: list[tuple[int, BlockType, int, int, int]],
    order: "np.random.RandomState",
    slot_bytes: int,
) -> None:
    path, contents = file
    placed = [place(path, *m) for m in matrices]
    order.shuffle(placed)  # order of use is not the file's
    found, copier, told = lock(placed, slot_bytes)
    assert found == [expected(contents, m) for m in placed]
    total = sum(map(len, found))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert not total or told[-1] == (total, total)
    # Cuts lie between groups, and every group begins in its own place.
    cuts = [c for c in copier.calls if c.rows % 16]
    assert len(cuts) <= sum(m.locked_rows % 16 > 0 for m in placed)


def test_reads_are_in_file_order_and_neighbours_share_one(file: tuple[Path, bytes]) -> None:
    path, contents = file
    reads: list[tuple[int, int]] = []

    def log(offset: int, length: int) -> None:
        reads.append((offset, length))

    first = place(path, 0, F32, 64, 256, 64)  # 64 KiB, all of it
    second = place(path, 64 * 1024 + 1024, F32, 64, 256, 32)  # behind a norm of 1 KiB
    third = place(path, 2 * MiB, F32, 64, 256, 0)
    fourth = place(path, 3 * MiB, F32, 1024, 256, 1024)  # 1 MiB in slots of 256 KiB
    found, _, _ = lock([fourth, third, second, first], 256 * 1024 + 8192, faulty(os.preadv, log))
    assert found == [expected(contents, m) for m in (fourth, third, second, first)]
    quarter = 256 * 1024
    assert sorted(reads) == [
        (0, 100 * 1024),  # 97 KiB, in whole blocks
        *((3 * MiB + n * quarter, quarter) for n in range(4)),
    ]


def test_several_files(file: tuple[Path, bytes], tmp_path: Path) -> None:
    path, contents = file
    other = tmp_path / "other"
    others = write_random(other, MiB, seed=1)
    placed = [place(other, 96, Q4_0, 48, 256, 48), place(path, 32, Q4_0, 48, 256, 16)]
    found, _, _ = lock(placed)
    assert found == [expected(others, placed[0]), expected(contents, placed[1])]


def test_the_kernel_gets_type_and_shape(file: tuple[Path, bytes]) -> None:
    _, copier, _ = lock([place(file[0], 0, Q6_K, 40, 512, 40)])
    (call,) = copier.calls
    assert (call.type_id, call.rows, call.columns) == (14, 40, 512)


def test_nothing_locked_reads_nothing(file: tuple[Path, bytes]) -> None:
    found, copier, told = lock([place(file[0], 0, F32, 16, 256, 0)])
    assert (found, copier.calls, told) == ([b""], [], [])


def test_a_file_too_short_is_an_error(file: tuple[Path, bytes]) -> None:
    with pytest.raises(ReadError, match="short read"):
        lock([place(file[0], SIZE - 4096, F32, 16, 256, 16)])


def test_interrupted_it_leaves_the_ring_usable(file: tuple[Path, bytes]) -> None:
    path, contents = file
    placed = place(path, 0, F32, 1024, 256, 1024)
    placement = Placement((placed,), ())
    ring = make_ring(2, 72 * 1024)
    calls: list[int] = []

    def interrupt(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with closing(Reader(path)) as reader:
        readers = {path: reader}
        with pytest.raises(KeyboardInterrupt):
            lock_weights(placement, readers, Arena(MiB), ring, Copier(), interrupt)
        arena = Arena(MiB)
        assert calls == [0, 65536, 131072, 196608]
        (address,) = lock_weights(placement, readers, arena, ring, Copier())
    assert ctypes.string_at(address, MiB) == contents[:MiB]


@pytest.fixture
def vector_path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "vectors"


def vector(path: Path, kind: BlockType, size: int, offset: int = 7) -> TensorInfo:
    return TensorInfo("blk.0.norm", (size,), kind, path, offset, kind.row_bytes(size))


def test_vectors_become_float32(vector_path: Path) -> None:
    values = np.array([0.0, -1.5, 3.25, 1024.0, np.inf], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    for kind, data in (
        (F32, values.tobytes()),
        (F16, values.astype(np.float16).tobytes()),
        (BF16, bf16.tobytes()),
    ):
        vector_path.write_bytes(b"\xff" * 7 + data)
        found = read_vector(vector(vector_path, kind, 5))
        assert found.dtype == np.float32
        assert np.array_equal(found, values)


def test_vectors_that_cannot_be_read(vector_path: Path) -> None:
    with pytest.raises(ReadError, match=r"blk\.0\.norm failed: No such file"):
        read_vector(vector(vector_path, F32, 5))
    vector_path.write_bytes(bytes(20))
    with pytest.raises(ReadError, match=r"norm at offset 7: 20 bytes expected, 13 got"):
        read_vector(vector(vector_path, F32, 5))
    vector_path.write_bytes(bytes(7 + 18))
    with pytest.raises(UnsupportedError, match="is Q4_0"):
        read_vector(vector(vector_path, Q4_0, 32))
