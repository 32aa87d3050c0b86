"""One product on the device, in either layout of the weights, beside the CPU's: sharp, as nothing
follows that could hide or enlarge a difference.
"""

from typing import Any

import numpy as np
import torch
from models import random_rows

from flexinfer import _kernels
from flexinfer.formats.quants import BlockType
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Epilogue, Input
from flexinfer.ops.torch_device import TorchDevice
from flexinfer.ops.torch_quants import Unpacker
from flexinfer.planner.placement import GROUP_ROWS
from flexinfer.units import MiB

ROWS, COLUMNS, TOKENS = 71, 512, (1, 5, 40)  # a last group that is not full
FLOAT_TYPES = ("F32", "F16")  # their activations stay as they are on the CPU, too
Array = np.ndarray[Any, Any]


def product_deviation(
    device: TorchDevice, spec: ModelSpec, kind: BlockType, *, by_kernels: bool
) -> float:
    """The largest, as a part of the largest value; both layouts, one token and more. `by_kernels`:
    from the CPU's kernels, who round activations, else from the values as they are.
    """
    rng = np.random.default_rng(kind.ggml_id)
    data = random_rows(rng, kind, ROWS, COLUMNS, 1.0)
    context = _kernels.Context(1)
    group_bytes = _kernels.group_bytes(kind.ggml_id, COLUMNS)
    mixed = np.zeros(-(-ROWS // GROUP_ROWS) * group_bytes, np.uint8)
    _kernels.interleave(context, kind.ggml_id, data.ctypes.data, mixed.ctypes.data, ROWS, COLUMNS)
    worst = 0.0
    for tokens in TOKENS:
        x = rng.standard_normal((tokens, COLUMNS), dtype=np.float32)
        kernels = _by_kernels(context, kind, mixed, x)
        expected = kernels if by_kernels else _by_values(kind, data, x)
        for blocks, interleaved in ((mixed, True), (data.reshape(-1), False)):
            got = _on_device(device, spec, kind, blocks, interleaved, x)
            worst = max(worst, float(np.abs(got - expected).max() / np.abs(expected).max()))
    return worst


def _by_kernels(context: _kernels.Context, kind: BlockType, mixed: Array, x: Array) -> Array:
    quantised = None
    if kind.name not in FLOAT_TYPES:
        quantised = np.zeros((len(x), _kernels.activation_bytes(COLUMNS)), np.uint8)
        _kernels.quantize(context, x, quantised)
    out = np.empty((len(x), ROWS), np.float32)
    _kernels.linear(
        context, kind.ggml_id, True, mixed.ctypes.data, ROWS, COLUMNS, x, quantised, out, 0,
        Epilogue.STORE, None,
    )  # fmt: skip
    return out


def _by_values(kind: BlockType, data: Array, x: Array) -> Array:
    values = Unpacker(torch.device("cpu")).rows(
        kind.ggml_id, torch.from_numpy(data.copy()), ROWS, COLUMNS, interleaved=False
    )
    return x.astype(np.float64) @ values.numpy().astype(np.float64).T


def _on_device(
    device: TorchDevice,
    spec: ModelSpec,
    kind: BlockType,
    blocks: Array,
    interleaved: bool,
    x: Array,
) -> Array:
    memory = device.arena(2 * MiB)
    weights = memory.take(blocks.nbytes)
    memory.copy(blocks.ctypes.data, blocks.nbytes, weights)
    inputs = memory.take(x.nbytes).array(np.float32, x.shape)
    inputs.copy_(torch.from_numpy(x))
    out = memory.take(4 * len(x) * ROWS).array(np.float32, (len(x), ROWS))
    row_bytes = kind.row_bytes(COLUMNS)
    matrix = BoundMatrix(
        "w", kind.ggml_id, ROWS, COLUMNS, row_bytes, GROUP_ROWS * row_bytes, False,
        weights.address, ROWS, (), interleaved=interleaved,
    )  # fmt: skip
    device.ops(spec, memory, None, None, None).linear(matrix, Input(inputs, None), out)
    return out.cpu().numpy()
