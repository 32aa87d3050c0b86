"""Ops on a torch device against the CPU's kernels, on the same weights and activations."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flexinfer import _kernels
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import Epilogue, Input, Span
from flexinfer.ops.cpu import CpuOps
from flexinfer.ops.kernels import Cache
from flexinfer.ops.torch import DeviceCache, TorchOps
from flexinfer.ops.torch_memory import DeviceArena
from flexinfer.planner import tiles
from kernel_matrices import F32, FLOATS, TYPES, Floats, Matrix, activations, names, product
from torch_tools import MemoryMeter, device_matrix, spec_of

CPU = torch.device("cpu")
CONTEXT = _kernels.Context(1)
SPEC = spec_of(heads=4, kv_heads=2, head_dim=32)
CACHE_TOKENS = 320


def torch_ops(spec: ModelSpec = SPEC, arena: DeviceArena | None = None, **kind: str) -> TorchOps:
    shape = (spec.kv_heads, CACHE_TOKENS, spec.head_dim)
    cache = DeviceCache((torch.zeros(shape),), (torch.zeros(shape),))
    return TorchOps(CPU, spec, arena or DeviceArena(CPU, 0), cache, None, None, **kind)


def torch_product(
    w: Matrix, x: Floats, out: Floats, locked_rows: int, epilogue: Epilogue, **kind: str
) -> Floats:
    """The product with the first rows locked, in interleaved form, and the rest as in the file."""
    arena = DeviceArena(CPU, 1 << 20)
    matrix, stream = device_matrix(w, arena, locked_rows)
    ops = TorchOps(CPU, SPEC, arena, DeviceCache((), ()), None, stream, **kind)
    result = torch.from_numpy(out.copy())
    bias = torch.from_numpy(activations(1, w.rows)[0])
    ops.linear(matrix, Input(torch.from_numpy(x), None), result, epilogue, bias)
    return result.numpy()


@pytest.mark.parametrize("type_id", TYPES, ids=names)
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_products_with_int8_activations_are_the_kernels(type_id: int, epilogue: Epilogue) -> None:
    w, x = Matrix.random(type_id, 39, 256), activations(5, 256)
    before, bias = activations(5, 39, seed=3), activations(1, 39)[0]
    expected = product(CONTEXT, w, x, out=before.copy(), epilogue=epilogue, bias=bias)
    got = torch_product(w, x, before, 16, epilogue, activations="int8")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_products_by_default_are_those_of_the_values(type_id: int) -> None:
    w, x = Matrix.random(type_id, 39, 256), activations(5, 256)
    exact = x.astype(np.float64) @ w.dequantized().astype(np.float64).T + activations(1, 39)[0]
    got = torch_product(w, x, np.zeros((5, 39), np.float32), 16, Epilogue.STORE)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
    rounded = torch_product(
        w, x, np.zeros((5, 39), np.float32), 16, Epilogue.STORE, activations="int8"
    )
    assert np.array_equal(rounded, got) == (type_id in FLOATS[:2])


def test_bits_do_not_depend_on_where_rows_lie() -> None:
    rows = 2 * tiles.WEIGHT_TILE_ROWS + 39  # three tiles
    w, x = Matrix.random(TYPES[3], rows, 64), activations(7, 64)
    zeros = np.zeros((7, rows), np.float32)
    cuts = (0, 16, tiles.WEIGHT_TILE_ROWS, tiles.WEIGHT_TILE_ROWS + 48, rows - 7, rows)
    results = [torch_product(w, x, zeros, n, Epilogue.STORE) for n in cuts]
    np.testing.assert_allclose(
        results[0], x @ w.dequantized().T + activations(1, rows), rtol=1e-4, atol=1e-4
    )
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_slabs_are_the_product_in_parts() -> None:
    w, x = Matrix.random(TYPES[3], 103, 256), activations(7, 256)
    arena = DeviceArena(CPU, 1 << 20)
    matrix, stream = device_matrix(w, arena, 48)
    ops = TorchOps(CPU, SPEC, arena, DeviceCache((), ()), None, stream)
    out, got = np.empty((7, 32), np.float32), np.full((7, 103), np.nan, np.float32)
    for row, values in ops.slabs(matrix, Input(torch.from_numpy(x), None), out):
        got[:, row : row + values.shape[1]] = values
    np.testing.assert_allclose(got, x @ w.dequantized().T, rtol=1e-4, atol=1e-4)


def test_norms_scaling_and_caps_are_the_kernels() -> None:
    x, weight = activations(6, 96), activations(1, 96)[0]
    ops, t, w = torch_ops(), torch.from_numpy(x.copy()), torch.from_numpy(weight)
    expected, got = np.zeros_like(x), torch.zeros(6, 96)
    _kernels.rms_norm(CONTEXT, x, weight, 1e-5, expected)
    ops.rms_norm(t, w, 1e-5, got)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)
    _kernels.rms_norm_add(CONTEXT, x, weight, 1e-5, expected)
    ops.rms_norm_add(t, w, 1e-5, got)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
    _kernels.scale(CONTEXT, expected, 3.0)
    _kernels.softcap(CONTEXT, expected, 2.0)
    ops.scale(got, 3.0)
    ops.softcap(got, 2.0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("pairs", [16, 8])
def test_rope_is_the_kernels(adjacent: bool, pairs: int) -> None:
    x = activations(5, 4 * 32)
    frequencies = 10000.0 ** -(np.arange(pairs) / pairs)
    positions = np.arange(7, 12, dtype=np.int32)
    turns, angles = np.empty((5, 2 * pairs), np.float32), torch.empty(5, 2 * pairs)
    _kernels.rope_angles(frequencies, positions, 1.25, turns)
    ops, got = torch_ops(), torch.from_numpy(x.copy())
    ops.rope_angles(frequencies, positions, 1.25, angles)
    np.testing.assert_allclose(angles.numpy(), turns, rtol=1e-6, atol=1e-7)
    _kernels.rope(CONTEXT, x, 4, 32, turns, adjacent)
    ops.rope(got, 4, 32, angles, adjacent)
    np.testing.assert_allclose(got.numpy(), x, rtol=1e-5, atol=1e-6)


def attended(ops: CpuOps | TorchOps, chunks: Sequence[int], window: int | None) -> Floats:
    """Attention of 300 tokens in sweeps of these sizes."""
    table = np.arange(5, dtype=np.int32)
    q, k, v = activations(300, 128, 5), activations(300, 64, 6), activations(300, 64, 7)
    out, start = np.zeros((300, 128), np.float32), 0
    for count in chunks:
        rows = slice(start, start + count)
        arrays = [q[rows], k[rows], v[rows], out[rows]]
        if isinstance(ops, TorchOps):
            arrays = [torch.from_numpy(a) for a in arrays]
        ops.attention(*arrays, 0, (Span(0, count, start, (table,)),), window)
        start += count
    return out


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("cap", [None, 5.0])
def test_attention_is_the_kernels(window: int | None, cap: float | None) -> None:
    spec = replace(SPEC, attention_softcap=cap)
    page = _kernels.kv_page_bytes(spec.kv_heads, spec.head_dim, F32)
    pages = np.zeros(5 * page, np.uint8)
    cpu = CpuOps(CONTEXT, spec, None, Cache((pages.ctypes.data,), (0,), page, F32), None)
    expected = attended(cpu, [300], window)
    for chunks in ([300], [200, 99, 1]):
        got = attended(torch_ops(spec), chunks, window)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_computing_takes_no_more_memory_than_is_planned_for() -> None:
    w, x = Matrix.random(12, 512, 1024), torch.from_numpy(activations(300, 1024))
    arena = DeviceArena(CPU, 1 << 20)
    matrix, stream = device_matrix(w, arena, 256)
    ops = TorchOps(CPU, SPEC, arena, DeviceCache((), ()), None, stream, activations="int8")
    out = torch.zeros(300, 512)
    ops.linear(matrix, Input(x, None), out)  # tables
    info = TensorInfo("w", (512, 1024), BLOCK_TYPES[12], Path(), 0, w.data.size)
    with MemoryMeter() as meter:
        ops.linear(matrix, Input(x, None), out, Epilogue.SILU_MUL)
        ops.rms_norm_add(x, torch.ones(1024), 1e-5, x)
    planned = tiles.scratch_bytes(SPEC, [info], 300, CACHE_TOKENS)
    assert 0.2 * planned < meter.peak_bytes <= planned
    for capped in (None, 5.0):
        spec = replace(SPEC, attention_softcap=capped)
        with MemoryMeter() as meter:
            attended(torch_ops(spec), [300], None)
        assert meter.peak_bytes <= tiles.scratch_bytes(spec, [info], 300, CACHE_TOKENS)
