"""The context and the small kernels: against float64, and the same bits however they are run."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flexinfer import _kernels

Array = np.ndarray[Any, Any]
ISAS = _kernels.available_isas()
WIDTHS = (1, 15, 16, 17, 64, 100, 576, 2048)

Op = Callable[[_kernels.Context, Array], Array]


def normal(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ulps(got: Array, exact: Array) -> float:
    """The largest error in units of float32's last place at the exact value."""
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(got - exact) / spacing).max())


def rms_norm(ctx: _kernels.Context, x: Array) -> Array:
    out = np.empty_like(x)
    _kernels.rms_norm(ctx, x, normal(x.shape[1], seed=4), 1e-5, out)
    return out


def rms_norm_add(ctx: _kernels.Context, x: Array) -> Array:
    out = x[:, ::-1].copy()
    _kernels.rms_norm_add(ctx, x, normal(x.shape[1], seed=4), 1e-5, out)
    return out


def scale(ctx: _kernels.Context, x: Array) -> Array:
    out = x.copy()
    _kernels.scale(ctx, out, 1.7)
    return out


def softcap(ctx: _kernels.Context, x: Array) -> Array:
    out = x * np.float32(20)
    _kernels.softcap(ctx, out, 30.0)
    return out


def exp(ctx: _kernels.Context, x: Array) -> Array:
    out = x * np.float32(20)
    _kernels.exp(ctx, out)
    return out


def rope_of(adjacent: bool) -> Op:
    def op(ctx: _kernels.Context, x: Array) -> Array:
        """Two heads if the width allows it, an even part of each turned."""
        heads = 2 if x.shape[1] % 2 == 0 else 1
        head_dim = x.shape[1] // heads
        pairs = max(head_dim // 2 - 1, 0)
        out = x.copy()
        _kernels.rope(ctx, out, heads, head_dim, angles(pairs, len(x)), adjacent)
        return out

    return op


def angles(pairs: int, tokens: int, start: int = 0) -> Array:
    out = np.empty((tokens, 2 * pairs), np.float32)
    positions = np.arange(start, start + tokens, dtype=np.int32)
    _kernels.rope_angles(10000.0 ** -(np.arange(pairs) / max(pairs, 1)), positions, 1.0, out)
    return out


def rms_norm_reference(x: Array) -> Array:
    wide = x.astype(np.float64)
    weight = normal(x.shape[1], seed=4).astype(np.float64)
    normalised: Array = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
    return normalised * weight


OPS: dict[str, Op] = {
    "rms_norm": rms_norm,
    "rms_norm_add": rms_norm_add,
    "scale": scale,
    "softcap": softcap,
    "exp": exp,
    "rope_half": rope_of(False),
    "rope_adjacent": rope_of(True),
}


@pytest.mark.parametrize("name", OPS)
def test_same_bits_whatever_batch_threads_and_instruction_set(name: str) -> None:
    op = OPS[name]
    for width in WIDTHS:
        x = normal(70, width)
        expected = op(_kernels.Context(1, ISAS[-1]), x)
        for isa in ISAS:
            for threads in (1, 2, 3):
                assert op(_kernels.Context(threads, isa), x).tobytes() == expected.tobytes()
            if "rope" in name:  # its angles go with the position: row 0 stands for the others
                assert op(_kernels.Context(1, isa), x[:1]).tobytes() == expected[:1].tobytes()
                continue
            alone = [op(_kernels.Context(1, isa), x[i : i + 1]) for i in (0, 33, 69)]
            assert np.concatenate(alone).tobytes() == expected[[0, 33, 69]].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_is_the_definition(isa: str, width: int) -> None:
    ctx = _kernels.Context(2, isa)
    x = normal(9, width) * np.float32(5)
    exact = rms_norm_reference(x)
    assert np.allclose(rms_norm(ctx, x), exact, rtol=1e-6, atol=0)
    added = x[:, ::-1].astype(np.float64) + exact
    assert np.allclose(rms_norm_add(ctx, x), added, rtol=1e-6, atol=1e-6)
    in_place = x.copy()
    _kernels.rms_norm(ctx, in_place, normal(width, seed=4), 1e-5, in_place)
    assert in_place.tobytes() == rms_norm(ctx, x).tobytes()


def test_rms_norm_of_heads_and_of_strided_rows() -> None:
    ctx = _kernels.Context(2)
    x = normal(12, 3 * 64)
    heads = rms_norm(ctx, x.reshape(-1, 64)).reshape(12, -1)
    assert np.allclose(heads, rms_norm_reference(x.reshape(-1, 64)).reshape(12, -1), rtol=1e-6)
    part = x[:, 64:128]
    out = np.zeros_like(x)
    _kernels.rms_norm(ctx, part, normal(64, seed=4), 1e-5, out[:, :64])
    assert out[:, :64].tobytes() == heads[:, 64:128].tobytes()
    assert not out[:, 64:].any()


def test_rms_norm_of_zeros_is_zero() -> None:
    assert not rms_norm(_kernels.Context(1), np.zeros((2, 40), np.float32)).any()


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize(("head_dim", "pairs"), [(64, 32), (20, 10), (96, 16), (2, 1), (40, 17)])
def test_rope_turns_pairs(adjacent: bool, head_dim: int, pairs: int) -> None:
    heads, tokens, start = 3, 11, 1000
    x = normal(tokens, heads * head_dim)
    frequencies = 500.0 ** -(np.arange(pairs) / pairs)
    angle = np.arange(start, start + tokens)[:, None, None] * frequencies
    turn = 1.5 * np.exp(1j * angle)  # magnitude 1.5
    head = x.reshape(tokens, heads, head_dim).astype(np.float64)
    first = slice(0, 2 * pairs, 2) if adjacent else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if adjacent else slice(pairs, 2 * pairs)
    turned = (head[:, :, first] + 1j * head[:, :, second]) * turn
    expected = head.copy()
    expected[:, :, first], expected[:, :, second] = turned.real, turned.imag

    table = np.empty((tokens, 2 * pairs), np.float32)
    positions = np.arange(start, start + tokens, dtype=np.int32)
    _kernels.rope_angles(frequencies, positions, 1.5, table)
    for isa in ISAS:
        got = x.copy()
        _kernels.rope(_kernels.Context(2, isa), got, heads, head_dim, table, adjacent)
        assert np.abs(got - expected.reshape(tokens, -1)).max() <= 1e-6
        untouched = got.reshape(tokens, heads, head_dim)[:, :, 2 * pairs :]
        assert (untouched == x.reshape(tokens, heads, head_dim)[:, :, 2 * pairs :]).all()


def test_rope_angles_of_a_position_are_its_own() -> None:
    far = angles(32, 200, start=131_000)
    exact = np.arange(131_000, 131_200)[:, None] * 10000.0 ** -(np.arange(32) / 32)
    assert np.abs(far - np.concatenate([np.cos(exact), np.sin(exact)], axis=1)).max() <= 6e-8
    assert far[77].tobytes() == angles(32, 1, start=131_077).tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_exp_is_within_two_ulps(isa: str) -> None:
    ctx = _kernels.Context(1, isa)
    x = np.concatenate(
        [np.linspace(-104, 88.7, 200_001), np.linspace(-1, 1, 50_001), normal(9999) * 1e-6]
    ).astype(np.float32)
    got = x[None].copy()
    _kernels.exp(ctx, got)
    assert ulps(got[0].astype(np.float64), np.exp(x.astype(np.float64))) <= 2


@pytest.mark.parametrize("isa", ISAS)
def test_exp_at_the_ends(isa: str) -> None:
    x = np.array([[0.0, -0.0, -np.inf, np.inf, -1e30, 1e30, 89.0, -104.0, np.nan]], np.float32)
    _kernels.exp(_kernels.Context(1, isa), x)
    assert x[0, :8].tolist() == [1, 1, 0, np.inf, 0, np.inf, np.inf, 0]
    assert np.isnan(x[0, 8])


@pytest.mark.parametrize("isa", ISAS)
def test_softcap_is_tanh(isa: str) -> None:
    ctx = _kernels.Context(1, isa)
    x = np.concatenate([np.linspace(-400, 400, 40_001), np.geomspace(1e-30, 1, 1001)])
    x = x.astype(np.float32)
    got = x[None].copy()
    _kernels.softcap(ctx, got, 30.0)
    exact = 30 * np.tanh(x.astype(np.float64) / 30)
    assert np.allclose(got[0], exact, rtol=5e-7, atol=0)
    ends = np.array([[np.inf, -np.inf, np.nan, 0.0]], np.float32)
    _kernels.softcap(ctx, ends, 30.0)
    assert ends[0, [0, 1, 3]].tolist() == [30, -30, 0] and np.isnan(ends[0, 2])


def test_a_context_says_what_it_is() -> None:
    ctx = _kernels.Context(2)
    assert (ctx.threads, ctx.isa, ctx.scratch_bytes) == (2, ISAS[-1], 0)
    assert _kernels.Context(threads=1, isa="scalar").isa == "scalar"
    assert ISAS[0] == "scalar" and len(ISAS) == len(set(ISAS))
    needed = {"avx2": "scalar", "avx512": "avx2", "avx512bf16": "avx512"}
    assert all(needed[isa] in ISAS for isa in ISAS[1:])


def test_a_context_refuses_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="'mmx' is not available here; available: scalar"):
        _kernels.Context(1, "mmx")
    with pytest.raises(ValueError, match="instruction set '' "):
        _kernels.Context(1, "")
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        _kernels.Context(0)


def test_python_threads_may_share_a_context() -> None:
    ctx = _kernels.Context(2)
    x = normal(300, 576)
    expected = rms_norm(ctx, x).tobytes()
    results: list[bool] = []

    def work() -> None:
        results.extend(rms_norm(ctx, x).tobytes() == expected for _ in range(50))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 150 and all(results)


def test_contexts_come_and_go_with_sleeping_and_waking_workers() -> None:
    x = normal(300, 576)
    expected = rms_norm(_kernels.Context(1), x).tobytes()
    for threads in range(1, 9):
        ctx = _kernels.Context(threads)
        assert rms_norm(ctx, x).tobytes() == expected
        threading.Event().wait(0.001)  # long enough for the workers to fall asleep
        assert rms_norm(ctx, x).tobytes() == expected


def test_wrong_arguments_are_refused() -> None:
    ctx = _kernels.Context(1)
    x, weight = normal(4, 32), normal(32)
    with pytest.raises(ValueError, match="size of weight is 31, must be 32"):
        _kernels.rms_norm(ctx, x, weight[:31], 1e-5, x)
    with pytest.raises(ValueError, match="rows of out is 3, must be 4"):
        _kernels.rms_norm(ctx, x, weight, 1e-5, x[:3])
    with pytest.raises(ValueError, match="out must have contiguous rows"):
        _kernels.rms_norm(ctx, x, weight, 1e-5, normal(32, 4).T)
    with pytest.raises(ValueError, match="x has rows that overlap or run backwards"):
        _kernels.scale(ctx, x[::-1], 2.0)
    with pytest.raises(ValueError, match="cap must be positive"):
        _kernels.softcap(ctx, x, 0.0)
    with pytest.raises(ValueError, match="width of x is 32, must be 48"):
        _kernels.rope(ctx, x, 3, 16, angles(8, 4), False)
    with pytest.raises(ValueError, match="rows of angles is 3, must be 4"):
        _kernels.rope(ctx, x, 2, 16, angles(8, 3), False)
    with pytest.raises(
        ValueError, match="width of angles is 18, must be even and at most head_dim"
    ):
        _kernels.rope(ctx, x, 2, 16, angles(9, 4), False)
    with pytest.raises(ValueError, match="width of out is 4, must be 6"):
        _kernels.rope_angles(np.ones(3), np.zeros(2, np.int32), 1.0, normal(2, 4))
    with pytest.raises(TypeError):
        _kernels.scale(ctx, x.astype(np.float64), 2.0)
