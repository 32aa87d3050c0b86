"""Preservation policies: which rows of which matrices stay locked.

`rows`, the default, is balanced locking (arXiv 2503.03777) taken to its limit: every stretch of the
sweep streams the same share of its bytes, so that reading and computing interleave evenly at any
budget. `tensor` is the paper's flexible tensor preservation (its Algorithm 1), which keeps whole
matrices; `layer`, `attention-first` and `ffn-first` are the baselines it is measured against.
"""

from collections.abc import Callable, Sequence

from flexinfer.errors import OptionError
from flexinfer.models.weights import Matrix
from flexinfer.planner.cutting import (
    cut,
    find_runs,
    group_bytes,
    groups,
    request_bytes,
    total_locked_bytes,
)
from flexinfer.planner.placement import Placement

HEAD = "output"
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
FFN = ("ffn_gate", "ffn_up", "ffn_down")


def place(policy: str, matrices: Sequence[Matrix], locked_limit_bytes: int) -> Placement:
    """Lock at most `locked_limit_bytes`, as a policy chooses. OptionError for an unknown one."""
    if policy not in POLICIES:
        raise OptionError(f"unknown policy {policy!r}", f"known: {', '.join(POLICIES)}")
    if total_locked_bytes(matrices) <= locked_limit_bytes:
        streamed_groups = [0] * len(matrices)
    else:
        streamed_groups = POLICIES[policy](matrices, locked_limit_bytes)
    return cut(matrices, streamed_groups, request_bytes(matrices))


def _rows(matrices: Sequence[Matrix], locked_limit_bytes: int) -> list[int]:
    """The same share of its bytes streams everywhere.

    Each run owes its bytes times the global fraction; what it owes beyond whole requests is
    carried to the next (error diffusion), so that requests stay large however small the share. A
    matrix keeps its first rows.
    """
    limit = request_bytes(matrices)
    excess = total_locked_bytes(matrices) - locked_limit_bytes
    streamed_groups = [0] * len(matrices)
    if excess > 0:
        total = total_locked_bytes(matrices)
        owed = 0
        for run in find_runs(matrices, limit):
            run_bytes = sum(groups(matrices[i]) * group_bytes(matrices[i]) for i in run.indices)
            owed += run_bytes * excess
            if len(run.indices) > 1 or run_bytes <= limit:
                take = run_bytes if 2 * owed >= run_bytes * total else 0
                if take:
                    for i in run.indices:
                        streamed_groups[i] = groups(matrices[i])
            else:
                (index,) = run.indices
                take, streamed_groups[index] = _whole_requests(matrices[index], owed, total, limit)
            owed -= take * total
        _spend_slack(matrices, streamed_groups, excess, limit)
    return streamed_groups


def _whole_requests(matrix: Matrix, owed: int, total: int, limit: int) -> tuple[int, int]:
    """Bytes and groups of a large matrix nearest to what is owed (owed / total bytes), in whole
    requests.
    """
    count = groups(matrix)
    per_request = limit // group_bytes(matrix)
    pieces = -(-count // per_request)
    wanted = owed * pieces // (total * count * group_bytes(matrix))
    fraction = min(pieces, max(0, wanted))
    streamed = count * fraction // pieces
    return streamed * group_bytes(matrix), streamed


def _spend_slack(
    matrices: Sequence[Matrix], streamed_groups: list[int], excess: int, limit: int
) -> None:
    """Make the streamed bytes meet `excess` exactly to within one group of rows.

    Diffusion leaves up to a request too much or too little; single large matrices give or take
    rows, the ones that stream most first, else whole matrices begin to stream.
    """
    streamed = sum(n * group_bytes(m) for n, m in zip(streamed_groups, matrices, strict=True))
    order = sorted(
        range(len(matrices)), key=lambda i: -group_bytes(matrices[i]) * groups(matrices[i])
    )
    for index in order:
        size, count = group_bytes(matrices[index]), groups(matrices[index])
        if streamed >= excess:
            break
        more = min(count - streamed_groups[index], -(-(excess - streamed) // size))
        streamed_groups[index] += more
        streamed += more * size
    for index in order:
        size = group_bytes(matrices[index])
        if groups(matrices[index]) * size <= limit:
            break  # smaller ones stream whole, with their neighbours
        fewer = min(streamed_groups[index], (streamed - excess) // size)
        streamed_groups[index] -= fewer
        streamed -= fewer * size


def _tensor(matrices: Sequence[Matrix], locked_limit_bytes: int) -> list[int]:
    """Algorithm 1: as many kinds of FFN matrices as fit in every layer at once, then attention.

    Attention's kinds follow one at a time; the one that no longer fits everywhere is kept in layers
    spread evenly over the sweep.
    """
    keeper = _Keeper(matrices, locked_limit_bytes)
    for count in (3, 2, 1):
        if keeper.keep_all(FFN[:count]):
            break
    for kind in (*ATTENTION, HEAD):
        keeper.keep_spread(kind)
    return keeper.streamed_groups


def _layer(matrices: Sequence[Matrix], locked_limit_bytes: int) -> list[int]:
    """Whole leading layers: nothing streams at first, everything at last (no balance)."""
    keeper = _Keeper(matrices, locked_limit_bytes)
    for layer in dict.fromkeys(m.layer for m in matrices):
        if not keeper.keep([i for i, m in enumerate(matrices) if m.layer == layer]):
            break
    return keeper.streamed_groups


def _kinds_first(kinds: Sequence[str]) -> "Policy":
    def policy(matrices: Sequence[Matrix], locked_limit_bytes: int) -> list[int]:
        keeper = _Keeper(matrices, locked_limit_bytes)
        for kind in (*kinds, HEAD):
            keeper.keep_spread(kind)
        return keeper.streamed_groups

    return policy


class _Keeper:
    """Keeps whole matrices while they fit."""

    def __init__(self, matrices: Sequence[Matrix], limit_bytes: int) -> None:
        self._matrices = matrices
        self._left_bytes = limit_bytes
        self.streamed_groups = [groups(m) for m in matrices]

    def keep(self, indices: Sequence[int]) -> bool:
        """All of these matrices, or none."""
        size = sum(groups(self._matrices[i]) * group_bytes(self._matrices[i]) for i in indices)
        if size > self._left_bytes:
            return False
        self._left_bytes -= size
        for i in indices:
            self.streamed_groups[i] = 0
        return True

    def keep_all(self, kinds: Sequence[str]) -> bool:
        """These kinds of matrices in every layer, or none."""
        return self.keep([i for i, m in enumerate(self._matrices) if m.role in kinds])

    def keep_spread(self, kind: str) -> None:
        """One kind of matrix in as many layers as fit, evenly spread."""
        indices = [
            i for i, m in enumerate(self._matrices) if m.role == kind and self.streamed_groups[i]
        ]
        for count in range(len(indices), 0, -1):
            if self.keep([indices[k * len(indices) // count] for k in range(count)]):
                return


Policy = Callable[[Sequence[Matrix], int], list[int]]
POLICIES: dict[str, Policy] = {
    "rows": _rows,
    "tensor": _tensor,
    "layer": _layer,
    "attention-first": _kinds_first((*ATTENTION, *FFN)),
    "ffn-first": _kinds_first((*FFN, *ATTENTION)),
}
