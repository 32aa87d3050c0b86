"""What asking an accelerator for a layer takes: a decoder of next to no weights there."""

import time
from dataclasses import replace

import numpy as np

from flexinfer.executor.device import OpenDevice
from flexinfer.executor.workspace import Workspace
from flexinfer.models.decoder import Decoder
from flexinfer.models.spec import Layer, ModelSpec, Rope
from flexinfer.models.weights import ModelWeights, matrix_shapes
from flexinfer.ops.base import BoundMatrix, Span
from flexinfer.planner.device import layer_cache_bytes
from flexinfer.planner.sizes import PAGE_TOKENS, Sizes, aligned
from flexinfer.units import MiB

LEAST_DIM = 64
LAYERS = 8
REPEATS = 5
NORMS = ("attn", "ffn", "attn_q", "attn_k", "post_attention", "post_ffw")


def layer_overhead_s(device: OpenDevice, spec: ModelSpec, weights: ModelWeights) -> float:
    """Seconds of a layer for one token, the least of a few times; the calls are those of the model,
    all weights of the type of its first matrix.
    """
    kind = weights.matrices[0].tensor.block_type
    dim = max(LEAST_DIM, kind.block_values)
    rope = Rope(10000.0, dim, next((r.rope.pairing for r in spec.layers if r.rope), "half"))
    tiny = replace(
        spec,
        layers=(Layer(rope),),
        dim=dim,
        ffn_dim=dim,
        heads=1,
        kv_heads=1,
        head_dim=dim,
        vocab_size=dim,
    )
    memory = device.arena(MiB)
    rows = memory.take(dim * kind.row_bytes(dim))
    rows.view().zero_()
    bound = {
        (0, role): BoundMatrix(
            role,
            kind.ggml_id,
            *shape,
            kind.row_bytes(dim),
            16 * kind.row_bytes(dim),
            False,
            rows.address,
            dim,
            (),
            interleaved=False,
        )
        for role, shape in matrix_shapes(tiny).items()
    }
    norm = memory.take(aligned(4 * dim)).array(np.float32, (dim,))
    norm.zero_()
    decoder = Decoder(tiny, bound, {f"blk.0.{name}_norm.weight": norm for name in NORMS})
    sizes = Sizes(tiny, weights, "f16")
    half = layer_cache_bytes(sizes, PAGE_TOKENS) // 2
    cache = device.cache(tiny, [(memory.take(half), memory.take(half))], PAGE_TOKENS, "f16")
    workspace = Workspace.carve(
        sizes, 1, memory.take(sizes.activation_bytes(1)), memory.take(sizes.logits_bytes())
    )
    ops = device.ops(tiny, memory, cache, None, None)
    buffers = workspace.buffers(1)
    buffers.hidden.zero_()
    angles = workspace.angles[0][:dim].reshape(1, dim)
    angles.zero_()
    span = Span(0, 1, 0, ())
    times = []
    for _ in range(REPEATS):
        device.synchronise()
        started = time.perf_counter()
        for _ in range(LAYERS):
            decoder.layer(ops, 0, buffers, (span,), angles)
        device.synchronise()
        times.append((time.perf_counter() - started) / LAYERS)
    return min(times)
