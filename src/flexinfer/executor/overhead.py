"""What the engine itself takes: a model so small that nothing but calls is left of it."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flexinfer import _kernels
from flexinfer.executor.engine import Engine
from flexinfer.executor.executor import MAX_RECORDED_TOKENS, Executor
from flexinfer.executor.kv_cache import PagePool
from flexinfer.executor.sampler import SamplingParams
from flexinfer.executor.workspace import Workspace
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.arena import Arena
from flexinfer.models.decoder import Decoder
from flexinfer.models.spec import Layer, ModelSpec, Rope
from flexinfer.models.weights import ModelWeights, matrix_shapes
from flexinfer.ops.base import BoundMatrix
from flexinfer.ops.cpu import CpuOps
from flexinfer.ops.embedding import EmbeddingRows
from flexinfer.ops.kernels import Cache
from flexinfer.planner.sizes import Sizes
from flexinfer.units import MiB

Q8_0 = BLOCK_TYPES[8]
DIM = VOCAB = 64
FEW_LAYERS, MANY_LAYERS = 2, 12
TOKENS = 24
PROMPT_TOKENS = MAX_RECORDED_TOKENS + 1
CONTEXT_TOKENS = 64  # a page of the cache
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of a layer whose calls are replayed, of one whose calls come from Python, of a sweep
    besides its layers, and of an embedding row in the page cache.
    """

    layer_s: float
    called_layer_s: float
    sweep_s: float
    row_s: float


def engine_overhead(context: _kernels.Context) -> Overhead:
    """At a model of next to no weights."""
    few, many = (_times(context, layers) for layers in (FEW_LAYERS, MANY_LAYERS))
    replayed, called = (max(0.0, (many[i] - few[i]) / (MANY_LAYERS - FEW_LAYERS)) for i in (0, 1))
    row_s = few[2]
    return Overhead(replayed, called, max(0.0, few[0] - FEW_LAYERS * replayed - row_s), row_s)


def _times(context: _kernels.Context, layers: int) -> tuple[float, float, float]:
    """The least seconds per token, to the first token of a prompt that is too long to be replayed,
    and per embedding row.
    """
    spec = ModelSpec(
        architecture="llama",
        layers=(Layer(Rope(10000.0, DIM, "half")),) * layers,
        dim=DIM,
        ffn_dim=DIM,
        heads=1,
        kv_heads=1,
        head_dim=DIM,
        vocab_size=VOCAB,
        context_tokens=CONTEXT_TOKENS,
        norm_eps=1e-5,
        activation="silu",
        attention_scale=1.0,
        tied_head=True,
    )
    token_s = first_s = row_s = float("inf")
    with _table() as table, closing(EmbeddingRows(table)) as embedding:
        arena = Arena(MiB)  # goes with the arrays that lie in it
        engine, ops = _engine(context, spec, ModelWeights(table, {}, ()), embedding, arena)
        params = SamplingParams(max_tokens=TOKENS, ignore_end=True)
        for round_ in range(ROUNDS):
            for _ in engine.generate([round_] * PROMPT_TOKENS, params):  # not what is cached
                pass
            token_s = min(token_s, engine.timing.tpot_s or token_s)
            first_s = min(first_s, engine.timing.ttft_s)
            row_s = min(row_s, _gather_s(ops))
        engine.close()
    return token_s, first_s, row_s


def _gather_s(ops: CpuOps) -> float:
    out = np.zeros((VOCAB, DIM), np.float32)
    started = time.perf_counter()
    ops.embed(range(VOCAB), 1.0, out)
    return (time.perf_counter() - started) / VOCAB


@contextmanager
def _table() -> Iterator[TensorInfo]:
    """An embedding table of zeros in a temporary file."""
    size = VOCAB * Q8_0.row_bytes(DIM)
    with tempfile.NamedTemporaryFile(prefix="flexinfer-") as file:
        file.write(bytes(size))
        file.flush()
        yield TensorInfo("token_embd.weight", (VOCAB, DIM), Q8_0, Path(file.name), 0, size)


def _engine(
    context: _kernels.Context,
    spec: ModelSpec,
    weights: ModelWeights,
    embedding: EmbeddingRows,
    arena: Arena,
) -> tuple[Engine, CpuOps]:
    """As a session makes it, all matrices being the same zeros."""
    sizes = Sizes(spec, weights, "f16")
    zeros = arena.take(VOCAB * Q8_0.row_bytes(DIM))
    shapes = {(-1, "output"): (VOCAB, DIM)}
    for layer in range(len(spec.layers)):
        shapes |= {(layer, role): shape for role, shape in matrix_shapes(spec).items()}
    matrices = {
        key: BoundMatrix(
            key[1],
            Q8_0.ggml_id,
            *shape,
            Q8_0.row_bytes(DIM),
            16 * Q8_0.row_bytes(DIM),
            True,
            zeros.address,
            shape[0],
            (),
        )
        for key, shape in shapes.items()
    }
    norm = np.ones(DIM, np.float32)
    vectors = {"output_norm.weight": norm}
    for layer in range(len(spec.layers)):
        vectors |= {f"blk.{layer}.{name}_norm.weight": norm for name in ("attn", "ffn")}
    page_bytes = sizes.kv_page_bytes()
    cache = arena.take(len(spec.layers) * page_bytes)
    addresses = tuple(cache.address + page_bytes * i for i in range(len(spec.layers)))
    ops = CpuOps(
        context,
        spec,
        embedding,
        Cache(addresses, sizes.kinds, page_bytes, sizes.kv_block_type.ggml_id),
        None,
    )
    activations = arena.take(sizes.activation_bytes(PROMPT_TOKENS))
    workspace = Workspace.carve(sizes, PROMPT_TOKENS, activations, arena.take(sizes.logits_bytes()))
    executor = Executor(Decoder(spec, matrices, vectors), ops, workspace)
    return Engine(executor, None, VOCAB, spec.context_tokens, [PagePool(1)]), ops
