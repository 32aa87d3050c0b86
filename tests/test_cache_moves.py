"""Keys and values on their way back to the host: behind the next layer, and never lost on it."""

import threading
from typing import Any

import numpy as np
import pytest

from flexinfer.executor.cache_moves import CacheMoves, WriteBack
from flexinfer.models.spec import Layer, ModelSpec
from flexinfer.ops.base import Span

pytestmark = pytest.mark.timeout(60)
LAYERS = 4
SPEC = ModelSpec(
    "llama", (Layer(None),) * LAYERS, 64, 64, 1, 1, 64, 64, 256, 1e-5, "silu", 1.0, False
)


class Device:
    """A device with two spaces, each a number that computing a layer overwrites; what goes back
    waits for `open`.
    """

    def __init__(self) -> None:
        self.spaces: dict[int, int | None] = {0: None, 1: None}
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def compute(self, layer: int, value: int) -> None:
        self.spaces[layer % 2] = value

    def reached(self) -> int:
        return 7

    def cached(self, layer: int, first: int, last: int, reached: int) -> tuple[Any, Any]:
        assert reached == 7
        assert self.open.wait(30)
        if self.broken:
            raise OSError("the device is gone")
        k = np.full(last - first, self.spaces[layer % 2])
        return k, -k


class Host:
    def __init__(self) -> None:
        self.got: dict[int, list[int]] = {}

    def append(self, layer: int, span: Span, position: int, k: Any, v: Any) -> None:
        assert np.array_equal(k, -v)
        self.got.setdefault(layer, []).extend(k.tolist())

    def pages(self, layer: int, span: Span, first: int, last: int) -> list[Any]:
        return []  # what is brought there does not matter here


def moves(host: Host, device: Device, *, behind: bool) -> CacheMoves:
    spaces = {layer: layer % 2 for layer in range(LAYERS)}
    return CacheMoves(SPEC, host, device, spaces, behind=behind)  # type: ignore[arg-type]


def sweep(cache: CacheMoves, device: Device, start: int, count: int, base: int) -> None:
    spans = (Span(0, count, start, ()),)
    for layer in range(LAYERS):
        cache.before(layer, "device", spans)
        device.compute(layer, base + layer)
        cache.after(layer, "device", spans)
    cache.finish()


@pytest.mark.parametrize("behind", [False, True])
def test_what_goes_back_is_what_each_layer_left(behind: bool) -> None:
    host, device = Host(), Device()
    cache = moves(host, device, behind=behind)
    sweep(cache, device, 0, 70, 10)  # more than a page
    sweep(cache, device, 70, 1, 20)
    assert host.got == {layer: [10 + layer] * 70 + [20 + layer] for layer in range(LAYERS)}
    cache.close()


def test_the_next_layer_computes_meanwhile_and_the_one_after_waits() -> None:
    host, device = Host(), Device()
    cache = moves(host, device, behind=True)
    device.open.clear()
    spans = (Span(0, 1, 0, ()),)
    for layer in (0, 1):  # both go on while nothing comes back
        cache.before(layer, "device", spans)
        device.compute(layer, layer)
        cache.after(layer, "device", spans)
    assert not host.got
    third = threading.Thread(target=cache.before, args=(2, "device", spans))
    third.start()
    third.join(0.2)
    assert third.is_alive()  # its space is not free before layer 0 is back
    device.open.set()
    third.join(30)
    assert host.got[0] == [0]
    cache.finish()
    assert host.got == {0: [0], 1: [1]}
    cache.close()


def test_a_failure_comes_up_in_its_sweep_and_leaves_the_next_one_right() -> None:
    host, device = Host(), Device()
    cache = moves(host, device, behind=True)
    sweep(cache, device, 0, 2, 10)
    device.broken = True
    with pytest.raises(OSError, match="gone"):
        sweep(cache, device, 2, 1, 20)
    cache.abandon()
    device.broken = False
    sweep(cache, device, 2, 1, 30)
    assert host.got == {layer: [10 + layer] * 2 + [30 + layer] for layer in range(LAYERS)}
    cache.close()


def test_abandoning_waits_for_what_is_under_way_and_drops_the_rest() -> None:
    back = WriteBack(behind=True)
    began, go, done = threading.Event(), threading.Event(), []

    def first() -> None:
        began.set()
        assert go.wait(30)
        done.append("first")

    back.start(0, first)
    back.start(1, lambda: done.append("second"))
    assert began.wait(30)
    threading.Timer(0.05, go.set).start()
    back.abandon()
    assert done == ["first"]
    back.wait_for_all()
    back.close()
