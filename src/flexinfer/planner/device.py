"""What a device holds, to the byte: rings, caches, activations, and the layers that are locked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flexinfer.errors import BudgetError
from flexinfer.memory.arena import round_up
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix, ModelWeights
from flexinfer.planner.cutting import most_held, request_bytes
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.planner.sizes import PAGE_TOKENS, Sizes, aligned
from flexinfer.planner.strategies import Strategy
from flexinfer.planner.tiles import TOKEN_TILE, scratch_bytes
from flexinfer.units import MiB, format_bytes

PhaseName = Literal["prefill", "decode"]
MIN_RING_SLOTS, MAX_RING_SLOTS = 4, 16
AHEAD = 2  # transfers on their way beside those in use
LINK_THREADS = 2  # one transfer is on its way while the next is prepared
SHARED_SPACES = 2  # for caches that the host keeps
RING_SHARE = 8  # at most this part of the memory for weights, above the least ring
ALIGNING_BYTES = 64 * 1024  # between regions


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Where every byte of `--vram` goes. `parts` sums to at most that."""

    vram_bytes: int
    prefill: Strategy
    decode: Strategy
    locked_layers: frozenset[int]  # with the head where the last layer is one
    cached_layers: frozenset[int]  # whose keys and values stay here; others' are the host's
    sweep_tokens: int  # of the largest sweep
    cache_tokens: int
    ring_slots: int
    slot_bytes: int
    parts: Mapping[Category, int]

    def strategy(self, phase: PhaseName) -> Strategy:
        return self.prefill if phase == "prefill" else self.decode

    @property
    def arena_bytes(self) -> int:
        """All but what comes and goes, or is not ours."""
        passing = (Category.SCRATCH, Category.RUNTIME)
        return sum(n for c, n in self.parts.items() if c not in passing)

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def host_cached_layers(self) -> frozenset[int]:
        """Whose keys and values the host needs room for: it computes them in a phase, or they are
        kept there for the device.
        """
        everywhere = enumerate(zip(self.prefill.processors, self.decode.processors, strict=True))
        return frozenset(
            i for i, both in everywhere if "host" in both or i not in self.cached_layers
        )

    def host_matrices(self, matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
        """Those that the host holds or streams: all but what is locked here and only used here."""
        last = len(self.prefill.processors) - 1
        return tuple(m for m in matrices if not self._only_here(m.layer if m.layer >= 0 else last))

    def locked_matrices(self, matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
        last = len(self.prefill.processors) - 1
        return tuple(
            m for m in matrices if (m.layer if m.layer >= 0 else last) in self.locked_layers
        )

    @property
    def shared_spaces(self) -> dict[int, int]:
        """Of the layers that are computed here and whose cache the host keeps, the space that each
        goes through: neighbours another one, so that what is new of one goes back to the host while
        the next computes.
        """
        shared = [i for i in self._layers if self._here(i) and i not in self.cached_layers]
        return {layer: at % SHARED_SPACES for at, layer in enumerate(shared)}

    def cache_bytes(self, sizes: Sizes) -> int:
        """Of one layer."""
        return layer_cache_bytes(sizes, self.cache_tokens)

    def needs_vector(self, name: str) -> bool:
        """Norms and biases of the layers that are computed here, and those that are no layer's."""
        return not name.startswith(tuple(f"blk.{i}." for i in self._layers if not self._here(i)))

    @property
    def _layers(self) -> range:
        return range(len(self.prefill.processors))

    def _here(self, layer: int) -> bool:
        return "device" in (self.prefill.processors[layer], self.decode.processors[layer])

    def _only_here(self, layer: int) -> bool:
        both = (self.prefill.processors[layer], self.decode.processors[layer])
        return layer in self.locked_layers and both == ("device", "device")


def make_device_plan(
    spec: ModelSpec,
    weights: ModelWeights,
    prefill: Strategy,
    decode: Strategy,
    *,
    vram_bytes: int,
    prompt_tokens: int,
    context_tokens: int,
    max_sweep_tokens: int,
    kv_type: str = "f16",
    lock: bool = True,
    runtime_bytes: int = 0,
) -> DevicePlan:
    """Divide `vram_bytes` for these strategies: caches of the layers that decode here, then as many
    of the last layers' weights as fit, if `lock`.

    Raises BudgetError with the minimum and its parts where it does not suffice.
    """
    layers = range(len(spec.layers))
    either = [i for i in layers if "device" in (prefill.processors[i], decode.processors[i])]
    sizes = Sizes(spec, weights, kv_type)
    held = [m for m in weights.matrices if (m.layer if m.layer >= 0 else layers[-1]) in either]
    layer_bytes = dict.fromkeys(layers, 0)
    for m in held:
        layer_bytes[m.layer if m.layer >= 0 else layers[-1]] += aligned(m.tensor.size_bytes)
    cache_tokens = round_up(context_tokens, PAGE_TOKENS)
    cache_bytes = layer_cache_bytes(sizes, cache_tokens)
    slot_bytes = round_up(request_bytes(weights.matrices), BLOCK_BYTES)
    in_use = most_held(weights.matrices, request_bytes(weights.matrices))
    least_slots = max(MIN_RING_SLOTS, in_use + AHEAD)
    prefixes = tuple(f"blk.{i}." for i in layers if i not in either)
    vectors = sum(
        aligned(4 * v.columns)
        for name, v in weights.vectors.items()
        if not name.startswith(prefixes)
    )

    spaces = min(SHARED_SPACES, len(either))

    def fixed(sweep_tokens: int) -> dict[Category, int]:
        scratch = scratch_bytes(spec, [m.tensor for m in held], sweep_tokens, cache_tokens)
        return {
            Category.RUNTIME: runtime_bytes,
            Category.VECTORS: vectors + ALIGNING_BYTES,
            Category.KV_CACHE: spaces * cache_bytes,  # for layers whose cache the host keeps
            Category.ACTIVATIONS: sizes.activation_bytes(sweep_tokens),
            Category.LOGITS: sizes.logits_bytes(),
            Category.SCRATCH: scratch,
            Category.RING: least_slots * slot_bytes,
        }

    wanted = min(max(prompt_tokens, 1), max_sweep_tokens)
    least = min(wanted, TOKEN_TILE)
    _check(vram_bytes, fixed(least), sum(layer_bytes.values()) if lock else None)
    sweep_tokens = least
    for tokens in (*range(least, wanted, TOKEN_TILE), wanted):
        if sum(fixed(tokens).values()) <= (vram_bytes + sum(fixed(least).values())) // 2:
            sweep_tokens = tokens
    parts = fixed(sweep_tokens)
    free = vram_bytes - sum(parts.values())
    cached: list[int] = []
    for i in reversed(layers):
        if decode.processors[i] == "device" and free >= cache_bytes:
            cached.append(i)
            free -= cache_bytes
    needed = min(spaces, len(set(either) - set(cached)))
    free += (spaces - needed) * cache_bytes  # fewer go through them
    slots = least_slots
    ring_bytes = parts.pop(Category.RING)
    locked: list[int] = []
    if lock and sum(layer_bytes.values()) <= free + ring_bytes:
        locked, slots = either, 0
    else:
        slots += max(0, min(MAX_RING_SLOTS - slots, free // RING_SHARE // slot_bytes))
        free -= slots * slot_bytes - ring_bytes
        if lock:
            locked = _most_locked(either, layer_bytes, free)
    parts[Category.KV_CACHE] = (needed + len(cached)) * cache_bytes
    parts[Category.RING] = slots * slot_bytes
    parts[Category.LOCKED] = sum(layer_bytes[i] for i in locked)
    return DevicePlan(
        vram_bytes,
        prefill,
        decode,
        frozenset(locked),
        frozenset(cached),
        sweep_tokens,
        cache_tokens,
        slots,
        slot_bytes,
        parts,
    )


def layer_cache_bytes(sizes: Sizes, tokens: int) -> int:
    """Keys and values of one layer, position after position; float16 or float32."""
    spec = sizes.spec
    return 2 * aligned(spec.kv_heads * spec.head_dim * tokens * sizes.kv_block_type.block_bytes)


def _most_locked(either: Iterable[int], layer_bytes: Mapping[int, int], free: int) -> list[int]:
    """As many of the last layers as fit."""
    locked = []
    for i in sorted(either, reverse=True):
        if layer_bytes[i] > free:
            break
        locked.append(i)
        free -= layer_bytes[i]
    return locked


def _check(vram_bytes: int, parts: dict[Category, int], all_locked_bytes: int | None) -> None:
    """Refuse what is below the minimum: with a ring, or with all layers locked instead."""
    if all_locked_bytes is not None and all_locked_bytes < parts[Category.RING]:
        parts = parts | {Category.RING: 0, Category.LOCKED: all_locked_bytes}
    needed = sum(parts.values())
    if needed <= vram_bytes:
        return
    text = ", ".join(
        f"{c.value.replace('_', ' ')} {format_bytes(n)}" for c, n in parts.items() if n
    )
    raise BudgetError(
        f"a device budget of {format_bytes(vram_bytes)} ({vram_bytes} bytes) is below the minimum "
        f"of {format_bytes(needed)} ({needed} bytes): {text}",
        f"give --vram {-(-needed // MiB)}MiB or more, or a shorter context (--ctx)",
    )
