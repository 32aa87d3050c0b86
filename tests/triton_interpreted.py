"""The Triton kernels in Triton's interpreter. `test_triton.py` runs this in a process of its own:
TRITON_INTERPRET must be set before anything imports Triton.

The interpreter multiplies bfloat16 as if it were integers, so float16 and float32 stand for it.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from device_tools import Bench
from factory import make_gguf
from flexinfer import _kernels
from flexinfer.executor.model import open_model
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.ops.base import BoundMatrix, Epilogue, Input
from flexinfer.ops.torch import DeviceCache, TorchOps
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.ops.torch_memory import DeviceArena
from flexinfer.ops.torch_quants import Unpacker
from flexinfer.ops.torch_triton import KINDS, FusedProducts
from flexinfer.planner import tiles
from kernel_matrices import Q4_K, Floats, Matrix, activations, assert_same_bits, names
from test_device_run import NEW, PROMPT, agree, forced
from torch_tools import MemoryMeter, device_matrix, spec_of

CPU = torch.device("cpu")
CONTEXT = _kernels.Context(1)
SPEC = spec_of(heads=4, kv_heads=2, head_dim=32)
TYPES = [t for t, block in BLOCK_TYPES.items() if block.name in KINDS]
ROWS, FIRST = 39, 48  # in two tiles of 64 rows, the last group of 16 not whole
TOKENS = [1, 3, 17, 130]  # of each kernel, and two tiles


def columns(type_id: int) -> int:
    """Such that the last step of a kernel has lanes to spare."""
    return 288 if BLOCK_TYPES[type_id].block_values == 32 else 256


def raw(w: Matrix, interleaved: bool) -> torch.Tensor:
    return torch.from_numpy(w.interleaved(CONTEXT) if interleaved else w.data)


def product(
    w: Matrix, x: Floats, interleaved: bool, first: int = FIRST, matmul: torch.dtype = torch.float32
) -> Floats:
    out = torch.full((len(x), w.rows), torch.nan)
    FusedProducts(matmul).multiply(
        w.type_id, raw(w, interleaved), first, torch.from_numpy(x), out, interleaved=interleaved
    )
    return out.numpy()


def rows_of(w: Matrix, first: int, last: int) -> Matrix:
    return Matrix(w.type_id, last - first, w.columns, w.data[first:last].copy())


def torch_ops(w: Matrix, locked_rows: int, fused: bool = True) -> tuple[TorchOps, BoundMatrix]:
    """Ops with the matrix's first rows locked, in interleaved form, and the rest as in the file."""
    arena = DeviceArena(CPU, 1 << 21)
    matrix, stream = device_matrix(w, arena, locked_rows)
    products = FusedProducts(torch.float32) if fused else None
    ops = TorchOps(CPU, SPEC, arena, DeviceCache((), ()), None, stream, fused=products)
    return ops, matrix


def close(got: Floats, x: Floats, w: Matrix) -> None:
    exact = x.astype(np.float64) @ w.dequantized().astype(np.float64).T
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("interleaved", [False, True], ids=["file", "interleaved"])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_products_are_those_of_the_values(type_id: int, interleaved: bool, tokens: int) -> None:
    w = Matrix.random(type_id, ROWS, columns(type_id))
    x = activations(tokens, w.columns)
    close(product(w, x, interleaved), x, w)


@pytest.mark.parametrize("tokens", TOKENS[:2])
def test_rows_may_be_longer_than_a_step(tokens: int) -> None:
    w, x = Matrix.random(Q4_K, 20, 768), activations(tokens, 768)
    close(product(w, x, False), x, w)
    assert_same_bits(product(w, x, True), product(w, x, False))


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_short_floats_are_the_values_rounded(type_id: int) -> None:
    w, x = Matrix.random(type_id, ROWS, columns(type_id)), activations(17, columns(type_id))
    values = Unpacker("cpu").rows(
        type_id, raw(w, True).view(-1, 16 * w.data.shape[1]), ROWS, w.columns, interleaved=True
    )
    short = torch.from_numpy(x).half().double() @ values.half().double().T
    got = product(w, x, True, matmul=torch.float16)
    np.testing.assert_allclose(got, short.numpy(), rtol=0, atol=1e-6 * short.abs().max().item())
    exact = x.astype(np.float64) @ w.dequantized().astype(np.float64).T
    assert np.abs(got - exact).max() > 1e-5 * np.abs(exact).max()  # the other product is not this


@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_bits_depend_neither_on_cuts_nor_on_layout(type_id: int, tokens: int) -> None:
    w = Matrix.random(type_id, ROWS, columns(type_id))
    x = activations(tokens, w.columns)
    whole = product(w, x, False)
    assert_same_bits(product(w, x, True), whole)
    for cuts, interleaved in (((0, 16, ROWS), True), ((0, 7, 18, ROWS), False)):
        for first, last in itertools.pairwise(cuts):
            piece = product(rows_of(w, first, last), x, interleaved, FIRST + first)
            assert_same_bits(piece, np.ascontiguousarray(whole[:, first:last]))


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_epilogues_are_the_plain_path_s(epilogue: Epilogue, tokens: int) -> None:
    w, x = Matrix.random(TYPES[0], ROWS, 256), torch.from_numpy(activations(tokens, 256))
    bias = torch.from_numpy(activations(1, ROWS, seed=4)[0])
    before = torch.from_numpy(activations(tokens, ROWS, seed=5))
    results = []
    for locked_rows in (0, 32, ROWS):
        fused, matrix = torch_ops(w, locked_rows)
        out = before.clone()
        fused.linear(matrix, Input(x, None), out, epilogue, bias)
        results.append(out.numpy())
    plain, matrix = torch_ops(w, 32, fused=False)
    expected = before.clone()
    plain.linear(matrix, Input(x, None), expected, epilogue, bias)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-5)
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


def test_slabs_are_the_product_in_parts() -> None:
    w, x = Matrix.random(TYPES[0], 103, 256), activations(300, 256)
    ops, matrix = torch_ops(w, 48)
    whole = torch.empty(300, 103)
    ops.linear(matrix, Input(torch.from_numpy(x), None), whole)
    out, got = np.empty((300, 40), np.float32), np.full((300, 103), np.nan, np.float32)
    ops, matrix = torch_ops(w, 48)
    for row, values in ops.slabs(matrix, Input(torch.from_numpy(x), None), out):
        got[:, row : row + values.shape[1]] = values
    assert_same_bits(got, whole.numpy())


def test_int8_activations_take_the_plain_path() -> None:
    w, x = Matrix.random(TYPES[0], ROWS, 256), torch.from_numpy(activations(1, 256))
    arena = DeviceArena(CPU, 1 << 20)
    matrix, stream = device_matrix(w, arena, 16)
    results = []
    for fused in (None, FusedProducts(torch.float32)):
        ops = TorchOps(
            CPU, SPEC, arena, DeviceCache((), ()), None, stream, activations="int8", fused=fused
        )
        out = torch.empty(1, ROWS)
        ops.linear(matrix, Input(x, None), out)
        results.append(out.numpy())
    assert_same_bits(*results)


def test_computing_takes_no_more_memory_than_is_planned_for() -> None:
    w, x = Matrix.random(Q4_K, 80, 512), torch.from_numpy(activations(300, 512))
    ops, matrix = torch_ops(w, 32)
    out = torch.zeros(300, 80)
    with MemoryMeter() as meter:
        ops.linear(matrix, Input(x, None), out, Epilogue.SILU_MUL)
        for _ in ops.slabs(matrix, Input(x, None), np.empty((300, 48), np.float32)):
            pass
    info = TensorInfo("w", (80, 512), BLOCK_TYPES[Q4_K], Path(), 0, w.data.size)
    assert 4 * 256 * 512 <= meter.peak_bytes <= tiles.scratch_bytes(SPEC, [info], 300, 320)


def test_a_model_computes_the_same_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    multiply = FusedProducts.multiply
    monkeypatch.setattr(
        FusedProducts, "multiply", lambda *a, **k: calls.append(a) or multiply(*a, **k)
    )
    make_gguf(
        tmp_path / "m.gguf", "llama", block_type="Q4_0", num_hidden_layers=1, hidden_size=64,
        num_attention_heads=2, head_dim=32, intermediate_size=96,
    )  # fmt: skip
    bench = Bench(open_model(tmp_path / "m.gguf"), len(PROMPT), len(NEW), activations="float")
    both = bench.split(1), bench.split(1)
    with bench.run(bench.device_plan(*both)) as llm:
        expected = forced(llm)
    assert not calls
    bench.opened = TorchDevice("cpu", fused=True)
    results = []
    for device, share in ((bench.device_plan(*both), 1.0), (bench.tightest(*both), 0.4)):
        with bench.run(device, share) as llm:
            results.append(forced(llm))
    assert {args[4].shape[0] for args in calls} == {1, len(PROMPT)}
    agree(results[0], expected, 2e-3)
    assert_same_bits(*results)
