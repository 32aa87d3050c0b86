"""Machines and emulated accelerators by the names that users give."""

from pathlib import Path

from flexinfer.errors import OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.hardware import Device, Hardware, Link
from flexinfer.planner.hardware_file import read_hardware
from flexinfer.planner.presets import PRESETS, preset
from flexinfer.units import GiB, parse_number

EMULATED = "emulated:"
SMALL = "small"
LEAST_PER_S, MOST_PER_S = 1e6, 1e18  # below, a transfer takes seconds
MOST_LATENCY_S = 0.1
_ABLE = [name for name, machine in PRESETS.items() if machine.device]
_HINT = (
    f"known: {', '.join(EMULATED + name for name in (SMALL, *_ABLE))}, or a file: {EMULATED}"
    f"./machine.toml; with @SCALE for a part of its rates: {EMULATED}laptop@0.001"
)
# One that two cores can keep up with through torch, not a machine that exists: each product takes
# its time, and the link is slow enough for streaming to matter.
_SMALL = Device(
    memory_bytes=4 * GiB,
    memory_bytes_per_s=1e9,
    ops_per_s={kind.name: 5e9 for kind in BLOCK_TYPES.values()},
    to_device=Link(250e6, 50e-6),
    to_host=Link(250e6, 50e-6),
)


def find_hardware(name: str) -> Hardware:
    """A preset, or a TOML file: whatever ends so or has a slash. Raises FlexInferError."""
    if name.endswith(".toml") or "/" in name:
        return read_hardware(Path(name))
    if name.removeprefix(EMULATED) == SMALL:
        raise OptionError(
            f"{SMALL} is an accelerator without a host", f"give --device {EMULATED}{SMALL}"
        )
    return preset(name)


def emulated_device(name: str) -> Device:
    """The accelerator that `emulated:MACHINE` or `emulated:MACHINE@SCALE` stands for.

    Raises OptionError for a machine without one, for a scale that is none and for rates that cannot
    be emulated, FormatError for a file.
    """
    machine, scale = name.removeprefix(EMULATED), 1.0
    before, at, after = machine.rpartition("@")
    if at and not after.endswith(".toml"):
        machine, scale = before, _scale(name, after)
    if machine == SMALL:
        return _checked(name, _SMALL.scaled(scale))
    if not machine:
        raise OptionError(f"--device {name} names no machine to emulate", _HINT)
    try:
        device = find_hardware(machine).device
    except OptionError as error:
        raise OptionError(f"--device {name}: {error}", _HINT) from error
    if device is None:
        raise OptionError(f"--device {name}: {machine} has no accelerator", _HINT)
    return _checked(name, device.scaled(scale))


def _scale(name: str, text: str) -> float:
    try:
        scale = parse_number(text)
    except OptionError:
        scale = 0.0
    if scale <= 0:
        raise OptionError(f"--device {name}: the scale {text!r} is no number above 0", _HINT)
    return scale


def _checked(name: str, device: Device) -> Device:
    rates = {
        "its link there": device.to_device.bytes_per_s,
        "its link back": device.to_host.bytes_per_s,
        "its memory": device.memory_bytes_per_s,
    } | {f"products of {kind}": rate for kind, rate in device.ops_per_s.items()}
    for what, per_s in rates.items():
        if not LEAST_PER_S <= per_s <= MOST_PER_S:
            raise OptionError(
                f"--device {name}: {what}, {per_s:.3g} a second, is not within {LEAST_PER_S:.0e} "
                f"to {MOST_PER_S:.0e}, and cannot be emulated",
                "give another @SCALE",
            )
    latency_s = max(device.to_device.latency_s, device.to_host.latency_s)
    if latency_s > MOST_LATENCY_S:
        raise OptionError(
            f"--device {name}: a latency of {latency_s:g} s is more than {MOST_LATENCY_S:g}, and "
            "cannot be emulated",
            "give a smaller latency_s",
        )
    return device
