"""A plan made real: memory taken, weights locked, the stream running, an engine ready."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from flexinfer import _kernels
from flexinfer.errors import OptionError
from flexinfer.executor.engine import Engine, closed
from flexinfer.executor.executor import Executor
from flexinfer.executor.kv_cache import PagePool
from flexinfer.executor.model import Model
from flexinfer.executor.workspace import Workspace
from flexinfer.memory.arena import Arena, Region
from flexinfer.memory.ledger import Category, Ledger
from flexinfer.models.decoder import Decoder
from flexinfer.ops.base import Array, BoundMatrix, BoundSegment
from flexinfer.ops.cpu import CpuOps
from flexinfer.ops.embedding import EmbeddingRows
from flexinfer.ops.kernels import Cache
from flexinfer.planner.placement import BLOCK_BYTES, GROUP_ROWS, Placement
from flexinfer.planner.planner import Plan
from flexinfer.planner.sizes import Sizes, aligned
from flexinfer.streaming.locking import lock_weights, read_vector
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream, Stream
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring

ISAS = ("scalar", "avx2", "avx512")  # each faster than those before it
FLOAT_TYPES = ("F32", "F16", "BF16")  # multiply float32 activations, not their int8 form
Progress = Callable[[str, int, int], None]  # phase, done, of how many


def kernel_context(threads: int) -> _kernels.Context:
    """The kernels on `threads` threads, in the best instruction set here up to FLEXINFER_ISA.

    Raises OptionError for a name that is none, and for more threads than there may be.
    """
    cap = os.environ.get("FLEXINFER_ISA") or ISAS[-1]
    available = _kernels.available_isas()
    if cap not in ISAS:
        raise OptionError(
            f"FLEXINFER_ISA is {cap!r}; available here: {', '.join(available)}",
            "unset FLEXINFER_ISA, or set it to one of these",
        )
    allowed = [isa for isa in ISAS[: ISAS.index(cap) + 1] if isa in available]
    try:
        return _kernels.Context(threads, allowed[-1])
    except RuntimeError as error:
        raise OptionError(
            f"{threads} threads cannot be started: {error}", "give fewer --threads, see `ulimit -u`"
        ) from error


class Session:
    """Holds everything of a run; close() gives it back. Raises FlexInferError subclasses."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        context: _kernels.Context,
        progress: Progress | None = None,
    ) -> None:
        started = time.perf_counter()
        self.plan = plan
        self.ledger = Ledger(plan.budget_bytes)
        self._readers: dict[Path, Reader] = {}
        self._stream: Stream | None = None
        self._arena: Arena | None = None
        self._engine: Engine | None = None
        self._embedding = EmbeddingRows(model.weights.embedding)
        try:
            self._build(model, context, progress)
        except BaseException:
            self.close()
            raise
        self.load_s = time.perf_counter() - started

    def _build(self, model: Model, context: _kernels.Context, progress: Progress | None) -> None:
        plan = self.plan
        spec = model.spec.for_context(plan.workload.context_tokens)
        sizes = Sizes(spec, model.weights, plan.kv_type)
        for category in (Category.INTERPRETER, Category.TOKENIZER):
            self.ledger.charge(category, plan.parts[category])
        self._arena = arena = Arena(plan.arena_bytes)
        paths = {m.matrix.tensor.path for m in plan.placement.matrices}
        self._readers = {path: Reader(path) for path in paths}
        ring_region = self._charge(Category.RING, plan.ring.size_bytes, BLOCK_BYTES)
        ring = Ring(ring_region, plan.ring.slot_bytes)

        def interleave(kind: int, source: int, target: int, rows: int, columns: int) -> None:
            _kernels.interleave(context, kind, source, target, rows, columns)

        def locking(done: int, total: int) -> None:
            if progress:
                progress("load", done, total)

        self.ledger.charge(Category.LOCKED, plan.placement.locked_bytes)
        addresses = lock_weights(
            plan.placement, self._readers, arena, ring, interleave, locking, plan.ring.threads
        )
        vectors = self._vectors(model)
        model.checkpoint.check()  # all that was read is of the file that was planned for
        cache = self._cache(sizes)
        workspace = self._workspace(sizes)
        if plan.placement.requests:
            requests, readers = plan.placement.requests, self._readers
            if plan.prefetch:
                self._stream = Prefetcher(requests, readers, ring, plan.ring.threads)
            else:
                self._stream = SerialStream(requests, readers, ring)
        ops = CpuOps(context, spec, self._embedding, cache, self._stream)
        decoder = Decoder(spec, bind_matrices(plan.placement, addresses), vectors)
        self.executor = Executor(decoder, ops, workspace)
        tokens = (plan.workload.context_tokens, plan.sweep_tokens)
        self.pools = tuple(PagePool(sizes.kv_pages(w, *tokens), w) for w in sizes.windows)
        self._engine = Engine(
            self.executor,
            model.tokenizer,
            spec.vocab_size,
            plan.workload.context_tokens,
            self.pools,
        )
        assert self.ledger.totals == plan.parts  # estimated and allocated bytes, by category
        self.pinned = arena.pin()

    def _charge(self, category: Category, size_bytes: int, alignment: int = 64) -> Region:
        self.ledger.charge(category, size_bytes)
        assert self._arena is not None
        return self._arena.take(size_bytes, alignment)

    def _vectors(self, model: Model) -> dict[str, Array]:
        vectors = {}
        for name, tensor in model.weights.vectors.items():
            region = self._charge(Category.VECTORS, aligned(4 * tensor.columns))
            vectors[name] = region.array(np.float32, (tensor.columns,))
            vectors[name][:] = read_vector(tensor)
        return vectors

    def _cache(self, sizes: Sizes) -> Cache:
        tokens = (self.plan.workload.context_tokens, self.plan.sweep_tokens)
        region = self._charge(Category.KV_CACHE, sizes.kv_bytes(*tokens))
        page_bytes, address, layers = sizes.kv_page_bytes(), region.address, []
        for layer in sizes.spec.layers:
            layers.append(address)
            address += page_bytes * sizes.kv_pages(layer.window_tokens, *tokens)
        return Cache(tuple(layers), sizes.kinds, page_bytes, sizes.kv_block_type.ggml_id)

    def _workspace(self, sizes: Sizes) -> Workspace:
        tokens = self.plan.sweep_tokens
        activations = self._charge(Category.ACTIVATIONS, sizes.activation_bytes(tokens))
        logits = self._charge(Category.LOGITS, sizes.logits_bytes())
        return Workspace.carve(sizes, tokens, activations, logits)

    @property
    def engine(self) -> Engine:
        """Raises FlexInferError once closed, and in a fork of the process."""
        if self._engine is None:
            raise closed()
        self._engine.check_process()
        return self._engine

    @property
    def disk_read_bytes(self) -> int:
        """Read from the model since it was opened, headers and vectors apart."""
        readers = sum(reader.read_bytes for reader in self._readers.values())
        return readers + self._embedding.read_bytes

    @property
    def direct(self) -> bool:
        return all(reader.direct for reader in self._readers.values())

    @property
    def huge_pages(self) -> bool:
        """Whether most of what is locked really lies in huge pages."""
        assert self._arena is not None
        return 2 * self._arena.huge_bytes() >= self.plan.placement.locked_bytes

    @property
    def stall_s(self) -> float:
        return self._stream.stats.stall_s if self._stream else 0.0

    def close(self) -> None:
        """Stop reading and give the memory back; twice does no harm.

        Requests under way end with an error at their next token, which this waits for.
        """
        if self._engine is not None:
            self._engine.close()
        if self._stream is not None:
            self._stream.close()
        for reader in self._readers.values():
            reader.close()
        self._embedding.close()
        self._engine = None  # with these two go the arrays that lie in the arena
        self.__dict__.pop("executor", None)
        if self._arena is not None:
            with suppress(BufferError):  # a traceback may hold an array; it is freed with that then
                self._arena.close()


def bind_matrices(
    placement: Placement, addresses: Sequence[int]
) -> dict[tuple[int, str], BoundMatrix]:
    """Join what the plan says of each matrix with where its locked rows lie."""
    uses = [s.request for m in placement.matrices for s in m.segments]
    first = {request: at for at, request in reversed(list(enumerate(uses)))}
    last = {request: at for at, request in enumerate(uses)}
    bound = {}
    at = 0
    for placed, address in zip(placement.matrices, addresses, strict=True):
        tensor, segments = placed.matrix.tensor, []
        for s in placed.segments:
            takes, gives = first[s.request] == at, last[s.request] == at
            segments.append(BoundSegment(s.request, s.start_bytes, s.row, s.rows, takes, gives))
            at += 1
        bound[placed.matrix.layer, placed.matrix.role] = BoundMatrix(
            tensor.name,
            tensor.block_type.ggml_id,
            tensor.rows,
            tensor.columns,
            tensor.row_bytes,
            GROUP_ROWS * tensor.row_bytes,
            tensor.block_type.name not in FLOAT_TYPES,
            address,
            placed.locked_rows,
            tuple(segments),
        )
    return bound
