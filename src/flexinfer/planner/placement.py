"""What stays and what streams: the vocabulary shared by the planner, the streamer and the
executor.
"""

from dataclasses import dataclass
from pathlib import Path

from flexinfer.models.weights import Matrix

GROUP_ROWS = 16  # rows that the kernels handle together; every cut lies at a multiple of it
BLOCK_BYTES = 4096  # direct reads: alignment of offset, length and memory that all devices accept


@dataclass(frozen=True, slots=True)
class Request:
    """One read: a contiguous byte range of a file that lands in one ring slot."""

    path: Path
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A row range of one matrix inside a request."""

    request: int  # index into the sweep's requests
    start_bytes: int  # of its first row, from the start of the request's payload
    row: int
    rows: int


@dataclass(frozen=True, slots=True)
class PlacedMatrix:
    """A matrix cut in two: `locked_rows` first rows stay, `segments` stream every sweep, in order
    of rows.

    `locked_rows` is a multiple of GROUP_ROWS or all rows.
    """

    matrix: Matrix
    locked_rows: int
    segments: tuple[Segment, ...]

    @property
    def locked_bytes(self) -> int:
        """In the interleaved form: whole groups, the last one padded."""
        return -(-self.locked_rows // GROUP_ROWS) * GROUP_ROWS * self.matrix.tensor.row_bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """The disk → host residency of a model: matrices in order of use, requests in order of
    first use.
    """

    matrices: tuple[PlacedMatrix, ...]
    requests: tuple[Request, ...]

    @property
    def locked_bytes(self) -> int:
        return sum(m.locked_bytes for m in self.matrices)

    @property
    def streamed_bytes(self) -> int:
        return sum(r.size_bytes for r in self.requests)

    def stage_bytes(self, layers: int) -> list[int]:
        """What each layer streams, the head last; a request counts where it is first used."""
        stages, taken = [0] * (layers + 1), 0
        for placed in self.matrices:
            for segment in placed.segments:
                if segment.request == taken:
                    stages[placed.matrix.layer] += self.requests[taken].size_bytes
                    taken += 1
        return stages
