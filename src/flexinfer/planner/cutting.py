"""Cutting: the reads that bring the streamed rows of each matrix, and the segments in them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.models.weights import Matrix
from flexinfer.planner.placement import GROUP_ROWS, PlacedMatrix, Placement, Request, Segment
from flexinfer.units import MiB

MAX_REQUEST_BYTES = 4 * MiB  # reads gain nothing beyond it and lose below 1 MiB
MIN_REQUEST_BYTES = MiB
REQUESTS_PER_SWEEP = 64  # a small model is cut finer, so that its ring stays small
MAX_GAP_BYTES = 64 * 1024  # norms and biases between two matrices that are read along


@dataclass(frozen=True, slots=True)
class Run:
    """Matrices of one layer that lie side by side in the file and stream together, or one large
    matrix alone.
    """

    indices: tuple[int, ...]  # into the matrices, in order of use


def group_bytes(matrix: Matrix) -> int:
    return GROUP_ROWS * matrix.tensor.row_bytes


def groups(matrix: Matrix) -> int:
    return -(-matrix.tensor.rows // GROUP_ROWS)


def total_locked_bytes(matrices: Sequence[Matrix]) -> int:
    """Bytes of all matrices in the interleaved form, last groups padded."""
    return sum(groups(m) * group_bytes(m) for m in matrices)


def request_bytes(matrices: Sequence[Matrix]) -> int:
    """The largest read: what one ring slot must hold, at least one group of every matrix."""
    total = sum(m.tensor.size_bytes for m in matrices)
    wanted = min(MAX_REQUEST_BYTES, max(MIN_REQUEST_BYTES, total // REQUESTS_PER_SWEEP))
    return max((wanted, *(group_bytes(m) for m in matrices)))


def find_runs(matrices: Sequence[Matrix], limit_bytes: int) -> tuple[Run, ...]:
    """Join file-adjacent matrices of a layer while they fit one request; in order of first use."""
    runs: list[Run] = []
    by_layer: dict[int, list[int]] = {}
    for index, matrix in enumerate(matrices):
        by_layer.setdefault(matrix.layer, []).append(index)
    for indices in by_layer.values():
        current: list[int] = []
        start = end = 0
        for index in sorted(
            indices, key=lambda i: (matrices[i].tensor.path, matrices[i].tensor.offset_bytes)
        ):
            tensor = matrices[index].tensor
            tensor_end = tensor.offset_bytes + tensor.size_bytes
            joins = (
                bool(current)
                and matrices[current[-1]].tensor.path == tensor.path
                and tensor.offset_bytes - end <= MAX_GAP_BYTES
                and tensor_end - start <= limit_bytes
            )
            if not joins:
                if current:
                    runs.append(Run(tuple(sorted(current))))
                current, start = [], tensor.offset_bytes
            current.append(index)
            end = tensor_end
        runs.append(Run(tuple(sorted(current))))
    return tuple(sorted(runs, key=lambda run: run.indices[0]))


def most_held(matrices: Sequence[Matrix], limit_bytes: int) -> int:
    """The most requests that can be in use at once, whatever streams: a run is held from the first
    use of its matrices to the last.
    """
    runs = find_runs(matrices, limit_bytes)
    uses = Counter(i for run in runs for i in range(run.indices[0], run.indices[-1] + 1))
    return max(uses.values(), default=0)


def cut(matrices: Sequence[Matrix], streamed_groups: Sequence[int], limit: int) -> Placement:
    """Requests of at most `limit` bytes for the last `streamed_groups` of each matrix, in order
    of use.
    """
    whole = {
        i: run
        for run in find_runs(matrices, limit)
        for i in run.indices
        if all(streamed_groups[j] == groups(matrices[j]) for j in run.indices)
        and len(run.indices) > 1
    }
    requests: list[Request] = []
    opened: dict[Run, int] = {}
    placed: list[PlacedMatrix] = []
    for index, matrix in enumerate(matrices):
        tensor, count = matrix.tensor, groups(matrix)
        locked_rows = min(tensor.rows, (count - streamed_groups[index]) * GROUP_ROWS)
        segments: list[Segment] = []
        if index in whole:
            run = whole[index]
            if run not in opened:
                tensors = [matrices[i].tensor for i in run.indices]
                start = min(t.offset_bytes for t in tensors)
                end = max(t.offset_bytes + t.size_bytes for t in tensors)
                opened[run] = len(requests)
                requests.append(Request(tensor.path, start, end - start))
            request = opened[run]
            start = tensor.offset_bytes - requests[request].offset_bytes
            segments.append(Segment(request, start, 0, tensor.rows))
        elif streamed_groups[index]:
            pieces = -(-streamed_groups[index] // (limit // group_bytes(matrix)))
            for piece in range(pieces):
                first = streamed_groups[index] * piece // pieces
                last = streamed_groups[index] * (piece + 1) // pieces
                row = locked_rows + first * GROUP_ROWS
                rows = min(tensor.rows, locked_rows + last * GROUP_ROWS) - row
                segments.append(Segment(len(requests), 0, row, rows))
                requests.append(
                    Request(
                        tensor.path,
                        tensor.offset_bytes + row * tensor.row_bytes,
                        rows * tensor.row_bytes,
                    )
                )
        placed.append(PlacedMatrix(matrix, locked_rows, tuple(segments)))
    return Placement(tuple(placed), tuple(requests))
