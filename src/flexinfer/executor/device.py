"""The accelerator's part of a session: memory taken, layers locked, both links streaming."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flexinfer.errors import OptionError
from flexinfer.executor.binding import Bound, bind_device
from flexinfer.executor.cache_moves import CacheMoves
from flexinfer.executor.sides import Device, Side, TwoWayOps
from flexinfer.executor.workspace import Workspace
from flexinfer.memory.ledger import Category, Ledger
from flexinfer.models.decoder import Decoder
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix, ModelWeights
from flexinfer.ops.base import Array
from flexinfer.ops.cpu import CpuOps
from flexinfer.ops.embedding import EmbeddingRows
from flexinfer.ops.kernels import Cache
from flexinfer.planner.device import DevicePlan, PhaseName
from flexinfer.planner.hardware import Device as Rates
from flexinfer.planner.machines import EMULATED, emulated_device
from flexinfer.planner.placement import BLOCK_BYTES, Placement, Request
from flexinfer.planner.sizes import Sizes, aligned
from flexinfer.streaming.link import Copier, Interruptible, PhaseStreams, Pipeline, Transfer
from flexinfer.streaming.prefetcher import Prefetcher, Stream
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Ring

PHASES: tuple[PhaseName, ...] = ("prefill", "decode")


class DeviceMemory(Copier, Protocol):
    """One block of a device's memory."""

    def take(self, size_bytes: int, alignment: int = 64) -> Any: ...

    def bytes_at(self, address: int, size_bytes: int) -> Any: ...

    def used(self, address: int) -> None: ...


class OpenDevice(Protocol):
    """An accelerator, as `ops.torch_device` opens it."""

    name: str

    emulates: Rates | None  # what it stands for, where it is no real accelerator but paced as one

    @property
    def stand_in(self) -> bool: ...

    @property
    def runtime_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int | None: ...

    def arena(self, size_bytes: int) -> DeviceMemory: ...

    def page_lock(self, address: int, size_bytes: int) -> bool:
        """Make host memory one that copies come from fastest; False where that is refused."""
        ...

    def page_unlock(self, address: int) -> None: ...

    def synchronise(self) -> None:
        """Wait for all that was asked of it."""
        ...

    def cache(
        self, spec: ModelSpec, regions: Sequence[tuple[Any, Any]], tokens: int, kv_type: str
    ) -> Any: ...

    def ops(
        self,
        spec: ModelSpec,
        memory: DeviceMemory,
        cache: Any,
        embedding: EmbeddingRows | None,
        stream: Stream | None,
    ) -> TwoWayOps: ...


def open_device(name: str) -> OpenDevice:
    """Raises OptionError for a device that is unknown or not there, and where torch is not;
    FormatError for a file of what is to be emulated.
    """
    try:
        from flexinfer.ops.torch_device import TorchDevice
        from flexinfer.ops.torch_emulated import EmulatedDevice
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise OptionError(
            f"--device {name} needs torch, which is not installed",
            "pip install 'flexinfer[torch]'",
        ) from error
    if name.startswith(EMULATED):
        return EmulatedDevice(name, emulated_device(name))
    return TorchDevice(name)


@dataclass(frozen=True, slots=True)
class HostParts:
    """What the host has for the device: its weights, streams and memory."""

    spec: ModelSpec
    weights: ModelWeights
    vectors: Mapping[str, Array]
    placement: Placement
    addresses: Sequence[int]
    readers: Mapping[Path, Reader]
    ring: Ring
    cache: Cache
    embedding: EmbeddingRows
    kv_type: str
    prefetch: bool


class DeviceBuilder:
    """Takes a plan's memory on a device, charge by charge, and locks what stays there, through the
    host's ring. Raises FlexInferError subclasses.
    """

    def __init__(self, device: OpenDevice, plan: DevicePlan, host: HostParts) -> None:
        self._device = device
        self._plan = plan
        self._host = host
        self.ledger = Ledger(plan.vram_bytes, "--vram")
        self._memory = device.arena(plan.arena_bytes)
        for category in (Category.RUNTIME, Category.SCRATCH):
            self.ledger.charge(category, plan.parts.get(category, 0))
        sizes = Sizes(host.spec, host.weights, host.kv_type)
        self._vectors = self._copy_vectors()
        self._cache = self._make_cache(sizes)
        self._workspace = Workspace.carve(
            sizes,
            plan.sweep_tokens,
            self._charge(Category.ACTIVATIONS, sizes.activation_bytes(plan.sweep_tokens)),
            self._charge(Category.LOGITS, sizes.logits_bytes()),
        )
        self._ring = None
        if plan.ring_slots:
            size_bytes = plan.ring_slots * plan.slot_bytes
            region = self._charge(Category.RING, size_bytes, BLOCK_BYTES)
            self._ring = Ring(region, plan.slot_bytes)
        locked = self._lock()
        self._bound = {phase: self._bind(phase, locked) for phase in PHASES}

    def pipeline(self, read: Callable[[Sequence[int]], Interruptible]) -> Pipeline:
        """`read` makes the disk's stream of these requests of the placement."""
        phases: dict[str, PhaseStreams] = {
            phase: PhaseStreams(transfers, self._requests(phase))
            for phase, (_, transfers) in self._bound.items()
        }
        prefetch = self._host.prefetch
        return Pipeline(phases, self._memory, self._ring, read, prefetch=prefetch)

    def _requests(self, phase: PhaseName) -> tuple[int, ...]:
        """What either processor needs of the disk: all but what is locked where it is computed."""
        plan = self._plan
        last = len(self._host.spec.layers) - 1
        here = {
            layer
            for layer, processor in enumerate(plan.strategy(phase).processors)
            if processor == "device" and layer in plan.locked_layers
        }
        used = (
            segment.request
            for placed in self._host.placement.matrices
            if (placed.matrix.layer if placed.matrix.layer >= 0 else last) not in here
            for segment in placed.segments
        )
        return tuple(dict.fromkeys(used))

    def device(self, pipeline: Pipeline, host_ops: CpuOps) -> Device:
        plan, host = self._plan, self._host
        ops = self._device.ops(host.spec, self._memory, self._cache, host.embedding, pipeline)

        def side(phase: PhaseName) -> Side:
            decoder = Decoder(host.spec, self._bound[phase][0], self._vectors)
            return Side(ops, decoder, self._workspace)

        return Device(
            ops,
            {phase: side(phase) for phase in PHASES},
            {phase: plan.strategy(phase).processors for phase in PHASES},
            CacheMoves(host.spec, host_ops, ops, plan.shared_spaces, behind=host.prefetch),
            pipeline,
        )

    def _charge(self, category: Category, size_bytes: int, alignment: int = 64) -> Any:
        self.ledger.charge(category, size_bytes)
        return self._memory.take(size_bytes, alignment)

    def _copy_vectors(self) -> dict[str, Any]:
        """Of the layers that are computed here in some phase, and what is no layer's."""
        vectors = {}
        for name, values in self._host.vectors.items():
            if self._plan.needs_vector(name):
                region = self._charge(Category.VECTORS, aligned(values.nbytes))
                self._memory.copy(values.ctypes.data, values.nbytes, region)
                vectors[name] = region.array(np.float32, values.shape)
        return vectors

    def _make_cache(self, sizes: Sizes) -> Any:
        plan, spec = self._plan, self._host.spec
        half = plan.cache_bytes(sizes) // 2

        def pair() -> tuple[Any, Any]:
            return self._charge(Category.KV_CACHE, half), self._charge(Category.KV_CACHE, half)

        spaces = plan.shared_spaces
        shared = [pair() for _ in set(spaces.values())]
        own = {layer: pair() for layer in sorted(plan.cached_layers)}
        own |= {layer: shared[space] for layer, space in spaces.items()}
        some = next(iter(own.values()))  # of layers that are never computed here
        regions = [own.get(layer, some) for layer in range(len(spec.layers))]
        return self._device.cache(spec, regions, plan.cache_tokens, self._host.kv_type)

    def _lock(self) -> dict[tuple[int, str], tuple[Matrix, int]]:
        """Read what stays on the device through the host's ring, as it is in the file."""
        host = self._host
        matrices = self._plan.locked_matrices(host.weights.matrices)
        limit = host.ring.slot_bytes - 2 * BLOCK_BYTES
        requests: list[Request] = []
        targets: list[Any] = []
        locked = {}
        for matrix in matrices:
            tensor = matrix.tensor
            region = self._charge(Category.LOCKED, aligned(tensor.size_bytes))
            locked[matrix.layer, matrix.role] = (matrix, region.address)
            for start in range(0, tensor.size_bytes, limit):
                size_bytes = min(limit, tensor.size_bytes - start)
                requests.append(Request(tensor.path, tensor.offset_bytes + start, size_bytes))
                targets.append(region.part(start, size_bytes))
        with closing(Prefetcher(requests, host.readers, host.ring, wrap=False)) as stream:
            for index, (request, target) in enumerate(zip(requests, targets, strict=True)):
                self._memory.copy(stream.take(index), request.size_bytes, target)
                stream.release(index)
        return locked

    def _bind(
        self, phase: PhaseName, locked: Mapping[tuple[int, str], tuple[Matrix, int]]
    ) -> tuple[Bound, tuple[Transfer, ...]]:
        processors = self._plan.strategy(phase).processors
        streamed = {i for i, p in enumerate(processors) if p == "device"}
        if processors[-1] == "device":
            streamed.add(-1)  # the head goes with the last layer
        host = self._host
        return bind_device(locked, host.placement, host.addresses, streamed, self._plan.slot_bytes)
