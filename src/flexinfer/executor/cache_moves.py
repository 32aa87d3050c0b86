"""The KV cache where it is needed: a layer's keys and values follow it to the other processor.

Either side knows which positions it has. Before a layer is computed there, what is missing comes
over the link: after prefill on the host for layers that decode on the device, and the other way
round. Layers of the device whose cache the host keeps take turns in a few spaces there; for them
everything comes before, and what is new goes back behind, while the next layer computes.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import DeviceOps, Span
from flexinfer.ops.cpu import CpuOps
from flexinfer.planner.sizes import PAGE_TOKENS
from flexinfer.planner.strategies import Processor


class WriteBack:
    """Jobs of layers, one after the other: on a thread of its own, or at once where not `behind`.

    What a job raises comes up where it is waited for.
    """

    def __init__(self, *, behind: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "flexinfer-cache") if behind else None
        self._jobs: dict[int, Future[None]] = {}

    def start(self, layer: int, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._jobs[layer] = self._thread.submit(job)

    def wait(self, layer: int) -> None:
        """Until the layer's job is done, if it has one."""
        if job := self._jobs.get(layer):
            job.result()
            del self._jobs[layer]

    def wait_for_all(self) -> None:
        for layer in list(self._jobs):
            self.wait(layer)

    def abandon(self) -> None:
        """Let go of what has not begun, and of whatever went wrong; nothing is under way then."""
        for job in self._jobs.values():
            job.cancel()
        for job in self._jobs.values():
            if not job.cancelled():
                job.exception()  # waits
        self._jobs.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class CacheMoves:
    """Of one sequence. `spaces` says of the layers whose cache has no place of its own on the
    device which of the shared ones they go through.
    """

    def __init__(
        self,
        spec: ModelSpec,
        host: CpuOps,
        device: DeviceOps,
        spaces: Mapping[int, int],
        *,
        behind: bool,
    ) -> None:
        self._spec = spec
        self._host = host
        self._device = device
        self._spaces = spaces
        self._users: dict[int, int] = {}  # of each space the layer that had it last
        self._back = WriteBack(behind=behind)
        self._first = {side: [0] * len(spec.layers) for side in ("host", "device")}
        self._end = {side: [0] * len(spec.layers) for side in ("host", "device")}

    def before(self, layer: int, processor: Processor, spans: Sequence[Span]) -> None:
        """Bring what the layer's processor lacks of the positions before this sweep."""
        (span,) = spans
        shared = self._spaces.get(layer) if processor == "device" else None
        if shared is not None:
            self._back.wait(self._users.get(shared, layer))
            self._users[shared] = layer
        for ends in self._end.values():
            ends[layer] = min(ends[layer], span.start)  # what came later was taken back
        window = self._spec.layers[layer].window_tokens
        seen = 0 if window is None else max(0, span.start - window + 1)
        first, end = self._first[processor], self._end[processor]
        if shared is not None or not first[layer] <= seen <= end[layer]:
            first[layer] = end[layer] = seen
        if end[layer] < span.start:
            move = self._to_device if processor == "device" else self._to_host
            move(layer, span, end[layer], span.start)

    def after(self, layer: int, processor: Processor, spans: Sequence[Span]) -> None:
        """The sweep's own positions are there now; the host has them when `finish` returns."""
        (span,) = spans
        end = span.start + span.count
        self._end[processor][layer] = end
        if processor == "device" and layer in self._spaces:
            reached = self._device.reached()
            self._back.start(layer, lambda: self._to_host(layer, span, span.start, end, reached))
            self._end["host"][layer] = end

    def finish(self) -> None:
        """The sweep's last layer is computed: wait for what is still on its way."""
        self._back.wait_for_all()

    def abandon(self) -> None:
        """The sweep is given up; the next one begins at the same position, or before."""
        self._back.abandon()

    def close(self) -> None:
        """No sweep is under way."""
        self._back.close()

    def _to_device(self, layer: int, span: Span, first: int, last: int) -> None:
        for page, address in self._host.pages(layer, span, first, last):
            begin = page * PAGE_TOKENS
            inside = max(first, begin), min(last, begin + PAGE_TOKENS)
            self._device.cache_page(layer, address, page, *inside)

    def _to_host(
        self, layer: int, span: Span, first: int, last: int, reached: object = None
    ) -> None:
        if reached is None:
            reached = self._device.reached()
        for begin in range(first, last, PAGE_TOKENS):
            k, v = self._device.cached(layer, begin, min(last, begin + PAGE_TOKENS), reached)
            self._host.append(layer, span, begin, k, v)
