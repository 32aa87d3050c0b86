"""Calls recorded in a program and replayed, by themselves; test_program.py has whole sweeps."""

import numpy as np
import pytest

from flexinfer import _kernels

CTX = _kernels.Context(1)
NONE = np.zeros(0, np.int64)
F16 = 1  # its ggml id


def test_nothing_happens_before_the_replay() -> None:
    x = np.full((2, 32), 3, np.float32)
    program = _kernels.Program(CTX, 2)
    _kernels.scale(program, x, 2.0)
    _kernels.scale(program, x, 10.0)
    assert len(program) == 2 and x[0, 0] == 3
    program.run(1, 2, _kernels.Spans(), NONE)
    assert x[0, 0] == 30
    program.run(0, 2, _kernels.Spans(), NONE)
    assert x[0, 0] == 600


def test_a_call_that_is_wrong_is_refused_when_recorded() -> None:
    x = np.ones((2, 32), np.float32)
    program = _kernels.Program(CTX, 2)
    with pytest.raises(ValueError, match="size of weight is 31, must be 32"):
        _kernels.rms_norm(program, x, np.ones(31, np.float32), 0.0, x)
    with pytest.raises(ValueError, match="no kernel for block type 99"):
        _kernels.linear(program, 99, True, 64, 16, 32, x, None, x, 0, 0, None)
    with pytest.raises(ValueError, match="must not be negative"):
        _kernels.linear_streamed(program, 0, -1, 0, 16, 32, x, None, x, 0, 0, None)
    with pytest.raises(ValueError, match="rows of k is 1, must be 2"):
        program.attention(x[:1], x[:1], x, x, 64, 8192, 0, 1, 1, 32, F16, 1.0)
    assert len(program) == 0


def test_a_replay_that_does_not_fit_the_records_is_refused() -> None:
    x = np.ones((2, 32), np.float32)
    table = np.zeros(1, np.int32)
    program = _kernels.Program(CTX, 2)
    _kernels.linear_streamed(program, 0, 3, 0, 16, 32, x, None, x, 0, 0, None)
    pages = np.zeros(2 * 32 * 64, np.uint16)
    place = (pages.ctypes.data, pages.nbytes)
    program.attention(x, x, x, x.copy(), *place, 1, 1, 1, 32, F16, 1.0)
    spans, addresses = _kernels.Spans(), np.full(4, x.ctypes.data, np.int64)
    spans.add(0, 2, 0, [table, table])
    for first, last in ((-1, 1), (1, 0), (0, 3)):
        with pytest.raises(ValueError, match="must be at least"):
            program.run(first, last, spans, addresses)
    with pytest.raises(ValueError, match="size of addresses is 3, must be at least 4"):
        program.run(0, 2, spans, addresses[:3])
    with pytest.raises(ValueError, match="page number"):
        spans.add(0, 1, 0, [table - 1])
    with pytest.raises(ValueError, match="size of table is 1, must be at least 2"):
        spans.add(0, 1, 64, [table])
    for first, tables, message in (
        (1, [table, table], "tokens of the program is 2, must be at least 3"),
        (0, [table], "tables of a span is 1, must be at least 2"),
    ):
        wrong = _kernels.Spans()
        wrong.add(first, 2, 0, tables)
        with pytest.raises(ValueError, match=message):
            program.run(0, 2, wrong, addresses)
    program.run(0, 0, spans, addresses)
