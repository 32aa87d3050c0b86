"""Preservation policies on toy models, where every byte can be counted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import OptionError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.weights import Matrix
from flexinfer.planner.cutting import (
    MAX_REQUEST_BYTES,
    find_runs,
    request_bytes,
    total_locked_bytes,
)
from flexinfer.planner.placement import GROUP_ROWS, Placement
from flexinfer.planner.preservation import ATTENTION, FFN, POLICIES, place

F32 = BLOCK_TYPES[0]
UNIT = 8 << 20
PATH = Path("toy.gguf")


def model(*layers: list[tuple[int, int]], gap_bytes: int = 0) -> list[Matrix]:
    """Matrices of (rows, columns), F32, one after the other in the file, `gap_bytes` between
    them.
    """
    matrices, offset = [], 1000
    for layer, shapes in enumerate(layers):
        for index, (rows, columns) in enumerate(shapes):
            size = 4 * rows * columns
            tensor = TensorInfo(f"{layer}.{index}", (rows, columns), F32, PATH, offset, size)
            matrices.append(Matrix(tensor, layer, str(index)))
            offset += size + gap_bytes
    return matrices


def check(matrices: list[Matrix], placement: Placement) -> None:
    """Every row is locked or streamed exactly once, in reads that hold it, requests in order of
    use.
    """
    limit = request_bytes(matrices)
    used = []
    for matrix, placed in zip(matrices, placement.matrices, strict=True):
        tensor = matrix.tensor
        assert placed.matrix is matrix
        row = placed.locked_rows
        assert row % GROUP_ROWS == 0 or row == tensor.rows
        for segment in placed.segments:
            assert segment.row == row and segment.rows > 0
            row += segment.rows
            assert row % GROUP_ROWS == 0 or row == tensor.rows
            request = placement.requests[segment.request]
            start = request.offset_bytes + segment.start_bytes
            assert start == tensor.offset_bytes + segment.row * tensor.row_bytes
            assert segment.start_bytes + segment.rows * tensor.row_bytes <= request.size_bytes
            used.append(segment.request)
        assert row == tensor.rows
    assert all(request.size_bytes <= limit for request in placement.requests)
    assert list(dict.fromkeys(used)) == list(range(len(placement.requests)))


def test_all_fits() -> None:
    matrices = model([(20, 64), (32, 64)])
    placement = place("rows", matrices, total_locked_bytes(matrices))
    assert [m.locked_rows for m in placement.matrices] == [20, 32]
    assert placement.requests == ()
    assert placement.locked_bytes == (32 + 32) * 256  # 20 rows take two groups


def test_nothing_fits() -> None:
    matrices = model([(20, 64), (32, 64)], [(32, 64)])
    placement = place("rows", matrices, 0)
    check(matrices, placement)
    assert [m.locked_rows for m in placement.matrices] == [0, 0, 0]
    assert [(r.offset_bytes, r.size_bytes) for r in placement.requests] == [
        (1000, 52 * 256),  # a layer's neighbours in one read
        (1000 + 52 * 256, 32 * 256),
    ]


def test_neighbours_are_joined_over_small_gaps_only() -> None:
    assert [r.indices for r in find_runs(model([(16, 64)] * 3, gap_bytes=64), 1 << 20)] == [
        (0, 1, 2)
    ]
    far = model([(16, 64)] * 3, gap_bytes=1 << 20)
    assert [r.indices for r in find_runs(far, 1 << 23)] == [(0,), (1,), (2,)]


def test_large_matrices_stream_the_same_share_everywhere() -> None:
    matrices = model(*([(4096, 4096), (16384, 4096)] for _ in range(6)))  # 64 and 256 MiB
    total = total_locked_bytes(matrices)
    for percent in (1, 10, 33, 50, 90, 99):
        limit = total * percent // 100
        placement = place("rows", matrices, limit)
        check(matrices, placement)
        assert limit - GROUP_ROWS * 16384 < placement.locked_bytes <= limit
        streamed = 0
        for index, placed in enumerate(placement.matrices):
            tensor = placed.matrix.tensor
            streamed += (tensor.rows - placed.locked_rows) * tensor.row_bytes
            so_far = sum(m.tensor.size_bytes for m in matrices[: index + 1])
            due = so_far * (100 - percent) / 100
            assert abs(streamed - due) <= 3 * MAX_REQUEST_BYTES  # never far ahead or behind
        small = [r for r in placement.requests if r.size_bytes < MAX_REQUEST_BYTES // 2]
        assert len(small) <= 2  # requests stay large at any share


def test_a_segment_is_never_below_a_group() -> None:
    matrices = model([(64, 1 << 18)])  # a group is 16 MiB, more than a request
    placement = place("rows", matrices, 16 << 20)
    check(matrices, placement)
    assert placement.matrices[0].locked_rows == 16
    assert [r.size_bytes for r in placement.requests] == [16 << 20] * 3


def llama(layers: int = 4) -> list[Matrix]:
    """Attention of 1, 1, 1, 1 and an FFN of 3, 3, 3 units a layer, the head 2; a unit is 8 MiB."""
    matrices, offset = [], 0
    kinds = [*((kind, 1) for kind in ATTENTION), *((kind, 3) for kind in FFN)]
    shapes = [(layer, *kind) for layer in range(layers) for kind in kinds] + [(-1, "output", 2)]
    for layer, role, units in shapes:
        rows, size = 1024 * units, UNIT * units
        tensor = TensorInfo(f"{layer}.{role}", (rows, 2048), F32, PATH, offset, size)
        matrices.append(Matrix(tensor, layer, role))
        offset += size
    return matrices


def kept(policy: str, units: int) -> dict[str, list[int]]:
    """Layers in which each kind is locked whole."""
    placement = place(policy, llama(), units * UNIT)
    locked: dict[str, list[int]] = {}
    for placed in placement.matrices:
        assert placed.locked_rows in (0, placed.matrix.tensor.rows)
        if placed.locked_rows:
            locked.setdefault(placed.matrix.role, []).append(placed.matrix.layer)
    return locked


EVERY = [0, 1, 2, 3]


def test_policy_tensor_is_algorithm_1() -> None:
    assert kept("tensor", 3) == {"attn_q": [0, 1, 2]}  # no FFN kind fits everywhere
    assert kept("tensor", 8) == {"attn_q": EVERY, "attn_k": EVERY}
    assert kept("tensor", 12) == {"ffn_gate": EVERY}
    assert kept("tensor", 18) == {"ffn_gate": EVERY, "attn_q": EVERY, "attn_k": [0, 2]}
    assert kept("tensor", 36 + 4) == dict.fromkeys((*FFN, "attn_q"), EVERY)


def test_policy_layer_keeps_the_first_layers() -> None:
    assert kept("layer", 12) == {}
    assert kept("layer", 27) == {kind: [0, 1] for kind in (*ATTENTION, *FFN)}


def test_policies_that_put_one_block_first() -> None:
    assert kept("attention-first", 17) == dict.fromkeys(ATTENTION, EVERY)
    assert kept("attention-first", 22) == {
        **dict.fromkeys(ATTENTION, EVERY),
        "ffn_gate": [0, 2],
    }
    assert kept("ffn-first", 6) == {"ffn_gate": [0, 2]}
    assert kept("ffn-first", 38) == {**dict.fromkeys(FFN, EVERY), "attn_q": [0, 2]}


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match="'best'") as caught:
        place("best", llama(), 0)
    assert "rows, tensor, layer, attention-first, ffn-first" in (caught.value.hint or "")


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 3000), st.sampled_from([32, 256, 1024])), min_size=1),
        min_size=1,
        max_size=6,
    ),
    st.floats(0, 1),
    st.sampled_from(list(POLICIES)),
)
def test_any_model_at_any_budget(
    layers: list[list[tuple[int, int]]], share: float, policy: str
) -> None:
    matrices = model(*layers)
    total = total_locked_bytes(matrices)
    limit = int(total * share)
    placement = place(policy, matrices, limit)
    check(matrices, placement)
    assert placement.locked_bytes <= limit
    if policy == "rows":
        assert placement.locked_bytes >= limit - 2 * request_bytes(matrices)
