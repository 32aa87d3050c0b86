"""Dequantising on a torch device: the `gguf` package's values, bit for bit, from either layout."""

import pytest
import torch

from flexinfer import _kernels
from flexinfer.ops.torch_quants import Unpacker
from flexinfer.planner.tiles import UNPACKING_BYTES
from kernel_matrices import BF16, TYPES, Matrix, assert_same_bits, names
from torch_tools import MemoryMeter

COLUMNS = 512


def raw(matrix: Matrix, interleaved: bool) -> torch.Tensor:
    """The matrix's bytes in either layout, [rows or groups, bytes]."""
    if not interleaved:
        return torch.from_numpy(matrix.data)
    groups = -(-matrix.rows // 16)
    return torch.from_numpy(matrix.interleaved(_kernels.Context(1))).view(groups, -1)


@pytest.mark.parametrize("rows", [16, 39])  # one group, and three of which the last is not whole
@pytest.mark.parametrize("interleaved", [False, True], ids=["file", "interleaved"])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_values_are_those_of_gguf(type_id: int, interleaved: bool, rows: int) -> None:
    matrix = Matrix.random(type_id, rows, COLUMNS)
    values = Unpacker("cpu").rows(
        type_id, raw(matrix, interleaved), rows, COLUMNS, interleaved=interleaved
    )
    assert values.dtype == torch.float32
    assert_same_bits(values.numpy(), matrix.dequantized())


def test_a_last_odd_column_of_pairs() -> None:
    matrix = Matrix.random(BF16, 39, 511)
    values = Unpacker("cpu").rows(BF16, raw(matrix, True), 39, 511, interleaved=True)
    assert_same_bits(values.numpy(), matrix.dequantized())


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_unpacking_takes_no_more_memory_than_is_planned_for(type_id: int) -> None:
    matrix = Matrix.random(type_id, 64, 1024)
    data, unpacker = raw(matrix, True), Unpacker("cpu")
    unpacker.rows(type_id, data, 64, 1024, interleaved=True)  # its tables stay
    with MemoryMeter() as meter:
        unpacker.rows(type_id, data, 64, 1024, interleaved=True)
    assert 4 * 64 * 1024 <= meter.peak_bytes <= UNPACKING_BYTES * 64 * 1024
