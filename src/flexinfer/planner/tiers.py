"""What fits where: host and device memory of a placing, by category."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from flexinfer.memory.budget import usable_bytes
from flexinfer.memory.ledger import Category
from flexinfer.planner.sizes import Sizes
from flexinfer.planner.strategies import Placing, Tiers
from flexinfer.units import MiB

SWEEP_ROWS = 32768  # tokens of all sequences that one sweep carries at most
DEVICE_OTHER_BYTES = 512 * MiB  # what a device's runtime takes for itself
RING_LAYERS = 2  # one is computed while the next arrives, on either side


@dataclass(frozen=True, slots=True)
class Load:
    """The work that a strategy is chosen for: so many sequences alike, begun together."""

    prompt_tokens: int
    new_tokens: int
    context_tokens: int
    sequences: int = 1

    @property
    def sweep_rows(self) -> int:
        """Tokens of the largest sweep."""
        return self.sequences * min(self.prompt_tokens, max(1, SWEEP_ROWS // self.sequences))


class TierMemory:
    """Bytes of one model and load in two memories. The last layer's weights include the head's."""

    def __init__(
        self,
        sizes: Sizes,
        layer_bytes: Sequence[int],
        load: Load,
        *,
        ram_bytes: int,
        vram_bytes: int,
        base_bytes: int,
    ) -> None:
        spec = sizes.spec
        self.layers = len(layer_bytes)
        self._usable_bytes = usable_bytes(ram_bytes)
        self._vram_bytes = vram_bytes
        self._base_bytes = base_bytes
        self._vectors_bytes = sizes.vector_bytes()
        self._activation_bytes = sizes.activation_bytes(load.sweep_rows)
        self._logits_bytes = load.sequences * sizes.logits_bytes()
        self._ring_bytes = RING_LAYERS * max(layer_bytes)
        step = load.sweep_rows // load.sequences
        cache = [
            load.sequences
            * sizes.kv_page_bytes()
            * sizes.kv_pages(layer.window_tokens, load.context_tokens, step)
            for layer in spec.layers
        ]
        # Of the last n layers, by n.
        self._last_weights = [0, *accumulate(reversed(layer_bytes))]
        self._last_cache = [0, *accumulate(reversed(cache))]

    def device_options(self, decode_layers: int) -> Iterator[Tiers]:
        """What the device may hold where that many layers decode there: with a ring for others or
        without, the cache first or weights first.
        """
        if not decode_layers:
            yield Tiers()
        for ring in (True, False):
            for cache_first in (True, False):
                tiers = self._filled(decode_layers, ring, cache_first)
                if tiers and (ring or decode_layers <= tiers.device_locked):
                    yield tiers

    def _filled(self, decode_layers: int, ring: bool, cache_first: bool) -> Tiers | None:
        free = self._vram_bytes - self._device_fixed(ring)
        if free < 0:
            return None
        most = self._last_cache[: decode_layers + 1]
        if cache_first:
            cached = bisect_right(most, free) - 1
            locked = bisect_right(self._last_weights, free - most[cached]) - 1
        else:
            locked = bisect_right(self._last_weights, free) - 1
            cached = bisect_right(most, free - self._last_weights[locked]) - 1
        return Tiers(locked, cached)

    def most_static(self) -> int:
        """Layers that fit on the device with their weights and their cache, nothing streamed."""
        free = self._vram_bytes - self._device_fixed(False)
        both = [w + c for w, c in zip(self._last_weights, self._last_cache, strict=True)]
        return max(0, bisect_right(both, free) - 1)

    def _device_fixed(self, ring: bool) -> int:
        shared = DEVICE_OTHER_BYTES + self._activation_bytes + self._logits_bytes
        return shared + ring * self._ring_bytes

    def device_fits(self, placing: Placing) -> bool:
        if not placing.device_layers:
            return True
        tiers = placing.tiers
        held = self._last_weights[tiers.device_locked] + self._last_cache[tiers.device_cache]
        ring = placing.device_layers > tiers.device_locked
        return self._device_fixed(ring) + held <= self._vram_bytes

    def device_parts(self, placing: Placing) -> dict[str, int]:
        """Empty where the device does nothing."""
        tiers = placing.tiers
        if not placing.device_layers:
            return {}
        ring = self._ring_bytes if placing.device_layers > tiers.device_locked else 0
        return {
            "runtime": DEVICE_OTHER_BYTES,
            str(Category.KV_CACHE): self._last_cache[tiers.device_cache],
            str(Category.ACTIVATIONS): self._activation_bytes,
            str(Category.LOGITS): self._logits_bytes,
            str(Category.RING): ring,
            str(Category.LOCKED): self._last_weights[tiers.device_locked],
        }

    def host_fixed_bytes(self, device_cache: int) -> int:
        """All but weights and the ring."""
        cache = self._last_cache[-1] - self._last_cache[device_cache]
        held = self._base_bytes + self._vectors_bytes + self._activation_bytes
        return held + self._logits_bytes + cache

    def streamed_share(self, host_layers: int, device_cache: int) -> float | None:
        """Of the weights of the first `host_layers` layers, the part that does not fit and comes
        from disk; None where not even its ring does.
        """
        needed = self._host_weights(host_layers)
        free = self._usable_bytes - self.host_fixed_bytes(device_cache)
        if needed <= free:
            return 0.0
        free -= self._ring_bytes
        return None if free < 0 else 1 - free / needed

    def _host_weights(self, host_layers: int) -> int:
        return self._last_weights[-1] - self._last_weights[self.layers - host_layers]

    def host_parts(self, placing: Placing, streamed_share: float) -> dict[str, int]:
        cached = placing.tiers.device_cache
        return {
            "process": self._base_bytes,
            str(Category.VECTORS): self._vectors_bytes,
            str(Category.KV_CACHE): self._last_cache[-1] - self._last_cache[cached],
            str(Category.ACTIVATIONS): self._activation_bytes,
            str(Category.LOGITS): self._logits_bytes,
            str(Category.RING): self._ring_bytes if streamed_share else 0,
            str(Category.LOCKED): round(
                (1 - streamed_share) * self._host_weights(placing.host_layers)
            ),
        }

    def least_host_bytes(self) -> int:
        """Of a host that computes everything and streams all weights."""
        return self.host_fixed_bytes(0) + self._ring_bytes
