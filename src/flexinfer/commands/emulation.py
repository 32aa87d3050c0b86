"""What is said wherever the accelerator is an emulated one: no figure is of a real device."""

from collections.abc import Iterator

from flexinfer.commands.figures import bytes_rate
from flexinfer.executor.setup import Planned

KEPT_UP = 0.9  # of an emulated rate; below that the times are this processor's


def describe_emulation(planned: Planned) -> Iterator[str]:
    """What is emulated, and which of its rates this processor does not reach; nothing where the
    device is a real one.
    """
    device = planned.device
    if device is None or device.emulates is None:
        return
    rates, reached = device.emulates, planned.hardware.device
    assert reached is not None
    yield (
        f"emulated  link {bytes_rate(rates.to_device.bytes_per_s)} there, "
        f"{bytes_rate(rates.to_host.bytes_per_s)} back, memory "
        f"{bytes_rate(rates.memory_bytes_per_s)}; no figure here is of a real accelerator"
    )
    pairs = {
        "memory": (reached.memory_bytes_per_s, rates.memory_bytes_per_s),
        "link": (reached.to_device.bytes_per_s, rates.to_device.bytes_per_s),
    } | {
        f"{kind} products": (rate, rates.ops_per_s[kind])
        for kind, rate in reached.ops_per_s.items()
    }
    short = [
        f"{name} {is_per_s / wanted_per_s:.2g}"
        for name, (is_per_s, wanted_per_s) in pairs.items()
        if is_per_s < KEPT_UP * wanted_per_s
    ]
    if short:
        yield (
            f"          this processor reaches only a part of it: {', '.join(short)}; a smaller "
            f"@SCALE is emulated better"
        )
