"""Weights in a device's memory: raw blocks in the pieces they come in, or dequantised in tiles."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flexinfer.ops.base import BoundMatrix
from flexinfer.ops.torch_quants import Unpacker
from flexinfer.planner.placement import GROUP_ROWS
from flexinfer.planner.tiles import tile_rows
from flexinfer.streaming.prefetcher import Stream

Tensor = Any


class Memory(Protocol):
    """Device memory by address."""

    def used(self, address: int) -> None:
        """What was asked of the device so far is all that reads the ring's slot there."""
        ...

    def bytes_at(self, address: int, size_bytes: int) -> Tensor:
        """uint8 [size_bytes], a view."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `row` .. of a matrix at an address."""

    interleaved: bool
    address: int
    row: int
    rows: int


class DeviceWeights:
    """Matrices in `memory`; what streams comes from `stream`. Tiles are of type `dtype`."""

    def __init__(self, device: Any, memory: Memory, stream: Stream | None, dtype: Any) -> None:
        self._device = device
        self._memory = memory
        self._stream = stream
        self._dtype = dtype
        self._unpacker = Unpacker(device)
        self._held: dict[int, int] = {}  # request → address, while its segments are in use

    def pieces(self, matrix: BoundMatrix) -> Iterator[Piece]:
        """All of the matrix; a streamed piece is valid until the next."""
        if matrix.locked_rows:
            yield Piece(matrix.interleaved, matrix.locked_address, 0, matrix.locked_rows)
        for segment in matrix.segments:
            assert self._stream is not None
            if segment.first:
                self._held[segment.request] = self._stream.take(segment.request)
            address = self._held[segment.request] + segment.start_bytes
            yield Piece(segment.interleaved, address, segment.row, segment.rows)
            if segment.last:
                self._memory.used(self._held.pop(segment.request))
                self._stream.release(segment.request)

    def raw(self, matrix: BoundMatrix, piece: Piece, first: int, rows: int) -> Tensor:
        """Bytes of rows `first` .. of the piece, in groups a multiple of 16: uint8 [rows or groups,
        bytes], a view.
        """
        row_bytes = matrix.group_bytes // GROUP_ROWS if piece.interleaved else matrix.row_bytes
        held = -(-rows // GROUP_ROWS) * GROUP_ROWS if piece.interleaved else rows
        data = self._memory.bytes_at(piece.address + first * row_bytes, held * row_bytes)
        return data.view(-1, matrix.group_bytes if piece.interleaved else matrix.row_bytes)

    def tiles(self, matrix: BoundMatrix) -> Iterator[tuple[int, Tensor]]:
        """(first row, weights [rows, columns]) of the matrix, cut as its shape says, whatever
        pieces it comes in; each valid until the next.
        """
        step = tile_rows(matrix.rows, matrix.columns)
        tile: Tensor | None = None
        for piece in self.pieces(matrix):
            done = 0
            while done < piece.rows:
                begin = (piece.row + done) // step * step
                size = min(step, matrix.rows - begin)
                count = min(piece.rows - done, begin + size - piece.row - done)
                values = self._values(matrix, piece, done, count)
                done += count
                if count == size:
                    yield begin, values
                    continue
                if tile is None:
                    tile = torch.empty(
                        (step, matrix.columns), dtype=self._dtype, device=self._device
                    )
                end = piece.row + done - begin
                tile[end - count : end].copy_(values)
                del values
                if end == size:
                    yield begin, tile[:size]

    def abandon_sweep(self) -> None:
        """As Ops has it."""
        self._held.clear()
        if self._stream is not None:
            self._stream.rewind()

    def _values(self, matrix: BoundMatrix, piece: Piece, first: int, rows: int) -> Tensor:
        data = self.raw(matrix, piece, first, rows)
        values = self._unpacker.rows(
            matrix.type_id, data, rows, matrix.columns, interleaved=piece.interleaved
        )
        return values.to(self._dtype)
