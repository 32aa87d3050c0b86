"""A plan made real: memory taken, weights locked, the stream running, an engine ready."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from flexinfer import _kernels
from flexinfer.errors import OptionError
from flexinfer.executor.binding import bind_matrices
from flexinfer.executor.device import DeviceBuilder, HostParts, OpenDevice
from flexinfer.executor.engine import Engine, closed
from flexinfer.executor.executor import Executor
from flexinfer.executor.hybrid import HybridExecutor
from flexinfer.executor.kv_cache import PagePool
from flexinfer.executor.model import Model
from flexinfer.executor.sides import Side
from flexinfer.executor.workspace import Workspace
from flexinfer.memory.arena import Arena, Region
from flexinfer.memory.ledger import Category, Ledger
from flexinfer.models.decoder import Decoder
from flexinfer.ops.base import Array
from flexinfer.ops.cpu import CpuOps
from flexinfer.ops.embedding import EmbeddingRows
from flexinfer.ops.kernels import Cache
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.planner.planner import Plan
from flexinfer.planner.sizes import Sizes, aligned
from flexinfer.streaming.link import Pipeline
from flexinfer.streaming.locking import lock_weights, read_vector
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream, Stream
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring

ISAS = ("scalar", "avx2", "avx512", "avx512bf16")  # each with all that those before it have
Progress = Callable[[str, int, int], None]  # phase, done, of how many


def kernel_context(threads: int) -> _kernels.Context:
    """The kernels on `threads` threads, in the best instruction set here, or the last one up to
    FLEXINFER_ISA.

    Raises OptionError for a name that is none, and for more threads than there may be.
    """
    cap = os.environ.get("FLEXINFER_ISA") or None
    available = _kernels.available_isas()
    if cap is not None and cap not in ISAS:
        raise OptionError(
            f"FLEXINFER_ISA is {cap!r}; available here: {', '.join(available)}",
            "unset FLEXINFER_ISA, or set it to one of these",
        )
    if cap is not None:
        available = [isa for isa in ISAS[: ISAS.index(cap) + 1] if isa in available]
    try:
        return _kernels.Context(threads, available[-1])
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
        device: OpenDevice | None = None,
    ) -> None:
        started = time.perf_counter()
        self.plan = plan
        self.ledger = Ledger(plan.budget_bytes)
        self._readers: dict[Path, Reader] = {}
        self._stream: Prefetcher | SerialStream | None = None
        self._pipeline: Pipeline | None = None  # with a device
        self._arena: Arena | None = None
        self._page_locked_for: OpenDevice | None = None
        self._engine: Engine | None = None
        self._embedding = EmbeddingRows(model.weights.embedding)
        try:
            self._build(model, context, progress, device)
        except BaseException:
            self.close()
            raise
        self.load_s = time.perf_counter() - started

    def _build(
        self,
        model: Model,
        context: _kernels.Context,
        progress: Progress | None,
        device: OpenDevice | None,
    ) -> None:
        plan = self.plan
        spec = model.spec.for_context(plan.workload.context_tokens)
        cached = plan.device.host_cached_layers if plan.device else None
        sizes = Sizes(spec, model.weights, plan.kv_type, cached)
        for category in (Category.INTERPRETER, Category.TOKENIZER, Category.STAND_IN):
            if category in plan.parts:
                self.ledger.charge(category, plan.parts[category])
        self._arena = arena = Arena(plan.arena_bytes)
        paths = {m.tensor.path for m in model.weights.matrices}
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
        builder = None
        if plan.device is not None:
            assert device is not None
            parts = HostParts(
                spec, model.weights, vectors, plan.placement, addresses, self._readers, ring,
                cache, self._embedding, plan.kv_type, plan.prefetch,
            )  # fmt: skip
            if device.page_lock(arena.address, arena.used_bytes):  # once, all that it copies from
                self._page_locked_for = device
            builder = DeviceBuilder(device, plan.device, parts)  # its weights go through the ring
        every = range(len(plan.placement.requests))
        if builder is not None:
            self._pipeline = builder.pipeline(partial(self._read_ahead, ring))
            stream: Stream | None = self._pipeline.disk
        else:
            stream = self._stream = self._read_ahead(ring, every) if every else None
        ops = CpuOps(context, spec, self._embedding, cache, stream)
        decoder = Decoder(spec, bind_matrices(plan.placement, addresses), vectors)
        if builder is not None and self._pipeline is not None:
            device_side = builder.device(self._pipeline, ops)
            self._pipeline.enter("prefill")
            side = Side(ops, decoder, workspace)
            self.executor: Executor | HybridExecutor = HybridExecutor(side, device_side)
        else:
            self.executor = Executor(decoder, ops, workspace)
        tokens = (plan.workload.context_tokens, plan.sweep_tokens)
        self.pools = tuple(PagePool(sizes.kv_pages(w, *tokens), w) for w in sizes.windows)
        self._engine = Engine(
            self.executor,
            model.tokenizer,
            spec.vocab_size,
            plan.workload.context_tokens,
            self.pools,
            str(model.path),
        )
        assert self.ledger.totals == plan.parts  # estimated and allocated bytes, by category
        self.pinned = arena.pin()

    def _read_ahead(self, ring: Ring, indices: Sequence[int]) -> Prefetcher | SerialStream:
        """The stream of these requests of the placement."""
        requests = [self.plan.placement.requests[i] for i in indices]
        if self.plan.prefetch:
            return Prefetcher(requests, self._readers, ring, self.plan.ring.threads)
        return SerialStream(requests, self._readers, ring)

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
        for index, layer in enumerate(sizes.spec.layers):
            layers.append(address)
            if sizes.cached(index):
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
    def link_bytes(self) -> int:
        """Moved to the device since the model was opened, locked layers apart."""
        return self._pipeline.moved_bytes if self._pipeline else 0

    @property
    def page_locked(self) -> bool:
        """Whether the device, if there is one, copies from host memory directly."""
        return self.plan.device is None or self._page_locked_for is not None

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
        if self._pipeline is not None:
            return self._pipeline.stall_s
        return self._stream.stats.stall_s if self._stream else 0.0

    def close(self) -> None:
        """Stop reading and give the memory back; twice does no harm.

        Requests under way end with an error at their next token, which this waits for.
        """
        if self._engine is not None:
            self._engine.close()
        if isinstance(executor := self.__dict__.get("executor"), HybridExecutor):
            executor.close()
        if self._pipeline is not None:
            self._pipeline.close()
        if self._stream is not None:
            self._stream.close()
        for reader in self._readers.values():
            reader.close()
        self._embedding.close()
        self._engine = None  # with these two go the arrays that lie in the arena
        self.__dict__.pop("executor", None)
        self._pipeline = None
        if self._page_locked_for is not None and self._arena is not None:
            self._page_locked_for.page_unlock(self._arena.address)
            self._page_locked_for = None
        if self._arena is not None:
            with suppress(BufferError):  # a traceback may hold an array; it is freed with that then
                self._arena.close()
