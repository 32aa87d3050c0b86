"""What the plan says of each matrix, joined with where it lies: memory, the stream, the link."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flexinfer.models.weights import Matrix
from flexinfer.ops.base import BoundMatrix, BoundSegment
from flexinfer.planner.placement import GROUP_ROWS, Placement
from flexinfer.streaming.link import Transfer

FLOAT_TYPES = ("F32", "F16", "BF16")  # multiply float32 activations, not their int8 form
Bound = dict[tuple[int, str], BoundMatrix]


def bind_matrices(placement: Placement, addresses: Sequence[int]) -> Bound:
    """For the host: locked rows at their addresses, the rest in the disk's stream."""
    segments = iter(
        _first_and_last(
            BoundSegment(s.request, s.start_bytes, s.row, s.rows, False, False)
            for placed in placement.matrices
            for s in placed.segments
        )
    )
    return {
        (placed.matrix.layer, placed.matrix.role): _bound(
            placed.matrix,
            address,
            placed.locked_rows,
            tuple(next(segments) for _ in placed.segments),
        )
        for placed, address in zip(placement.matrices, addresses, strict=True)
    }


def bind_device(
    locked: Mapping[tuple[int, str], tuple[Matrix, int]],
    placement: Placement,
    addresses: Sequence[int],
    streamed_layers: Collection[int],
    slot_bytes: int,
) -> tuple[Bound, tuple[Transfer, ...]]:
    """For a device in one phase: matrices locked there, as in the file, and those of layers
    that go over the link, with the transfers that bring them in the order of use.

    `placement` and `addresses` say where the host has the latter.
    """
    bound = {
        key: replace(_bound(matrix, address, matrix.tensor.rows, ()), interleaved=False)
        for key, (matrix, address) in locked.items()
    }
    transfers: list[Transfer] = []
    opened: dict[int, int] = {}
    coming: list[tuple[Matrix, list[BoundSegment]]] = []
    for placed, address in zip(placement.matrices, addresses, strict=True):
        matrix, segments = placed.matrix, list[BoundSegment]()
        key = (matrix.layer, matrix.role)
        if matrix.layer not in streamed_layers or key in locked:
            continue
        group_bytes = GROUP_ROWS * matrix.tensor.row_bytes
        step = slot_bytes // group_bytes * GROUP_ROWS
        for row in range(0, placed.locked_rows, step):
            rows = min(step, placed.locked_rows - row)
            size_bytes = -(-rows // GROUP_ROWS) * group_bytes
            segments.append(BoundSegment(len(transfers), 0, row, rows, False, False, True))
            transfers.append(Transfer(size_bytes, address + row * matrix.tensor.row_bytes))
        for s in placed.segments:
            if s.request not in opened:
                opened[s.request] = len(transfers)
                size_bytes = placement.requests[s.request].size_bytes
                transfers.append(Transfer(size_bytes, request=s.request))
            at = opened[s.request]
            segments.append(BoundSegment(at, s.start_bytes, s.row, s.rows, False, False))
        coming.append((matrix, segments))
    ordered = iter(_first_and_last(s for _, segments in coming for s in segments))
    for matrix, segments in coming:
        own = tuple(next(ordered) for _ in segments)
        bound[matrix.layer, matrix.role] = _bound(matrix, 0, 0, own)
    return bound, tuple(transfers)


def _bound(
    matrix: Matrix, address: int, locked_rows: int, segments: tuple[BoundSegment, ...]
) -> BoundMatrix:
    tensor = matrix.tensor
    return BoundMatrix(
        tensor.name,
        tensor.block_type.ggml_id,
        tensor.rows,
        tensor.columns,
        tensor.row_bytes,
        GROUP_ROWS * tensor.row_bytes,
        tensor.block_type.name not in FLOAT_TYPES,
        address,
        locked_rows,
        segments,
    )


def _first_and_last(segments: Iterable[BoundSegment]) -> list[BoundSegment]:
    """Of each request the segment used first and the one used last, marked."""
    segments = list(segments)
    first = {s.request: at for at, s in reversed(list(enumerate(segments)))}
    last = {s.request: at for at, s in enumerate(segments)}
    return [
        replace(s, first=first[s.request] == at, last=last[s.request] == at)
        for at, s in enumerate(segments)
    ]
