"""The KV cache where it is needed: a layer's keys and values follow it to the other processor.

Either side knows which positions it has. Before a layer is computed there, what is missing comes
over the link: after prefill on the host for layers that decode on the device, and the other way
round. Layers of the device whose cache the host keeps share memory there; for them everything comes
before, and what is new goes back behind.
"""

from collections.abc import Collection, Sequence

from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import DeviceOps, Span
from flexinfer.ops.cpu import CpuOps
from flexinfer.planner.sizes import PAGE_TOKENS
from flexinfer.planner.strategies import Processor


class CacheMoves:
    """Of one sequence. `kept` are the layers whose cache has a place of its own on the device."""

    def __init__(
        self, spec: ModelSpec, host: CpuOps, device: DeviceOps, kept: Collection[int]
    ) -> None:
        self._spec = spec
        self._host = host
        self._device = device
        self._kept = kept
        self._first = {side: [0] * len(spec.layers) for side in ("host", "device")}
        self._end = {side: [0] * len(spec.layers) for side in ("host", "device")}

    def before(self, layer: int, processor: Processor, spans: Sequence[Span]) -> None:
        """Bring what the layer's processor lacks of the positions before this sweep."""
        (span,) = spans
        for ends in self._end.values():
            ends[layer] = min(ends[layer], span.start)  # what came later was taken back
        window = self._spec.layers[layer].window_tokens
        seen = 0 if window is None else max(0, span.start - window + 1)
        first, end = self._first[processor], self._end[processor]
        if (processor == "device" and layer not in self._kept) or not (
            first[layer] <= seen <= end[layer]
        ):
            first[layer] = end[layer] = seen
        if end[layer] < span.start:
            move = self._to_device if processor == "device" else self._to_host
            move(layer, span, end[layer], span.start)

    def after(self, layer: int, processor: Processor, spans: Sequence[Span]) -> None:
        """The sweep's own positions are there now."""
        (span,) = spans
        end = span.start + span.count
        self._end[processor][layer] = end
        if processor == "device" and layer not in self._kept:
            self._to_host(layer, span, span.start, end)
            self._end["host"][layer] = end

    def _to_device(self, layer: int, span: Span, first: int, last: int) -> None:
        for page, address in self._host.pages(layer, span, first, last):
            begin = page * PAGE_TOKENS
            inside = max(first, begin), min(last, begin + PAGE_TOKENS)
            self._device.cache_page(layer, address, page, *inside)

    def _to_host(self, layer: int, span: Span, first: int, last: int) -> None:
        for begin in range(first, last, PAGE_TOKENS):
            k, v = self._device.cached(layer, begin, min(last, begin + PAGE_TOKENS))
            self._host.append(layer, span, begin, k, v)
