"""Machines and emulated accelerators by the names that users give."""

import math
from pathlib import Path

from flexinfer.errors import OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.hardware import Device, Hardware, Link
from flexinfer.planner.hardware_file import read_hardware
from flexinfer.planner.presets import preset
from flexinfer.units import GiB

EMULATED = "emulated:"
SMALL = "small"
LEAST_PER_S, MOST_PER_S = 1e6, 1e18  # below, a transfer takes seconds, and nothing ends meanwhile
_HINT = (
    f"give {EMULATED}{SMALL}, or a machine that has an accelerator, with @SCALE for a part of its "
    f"rates: {EMULATED}laptop@0.001, {EMULATED}machine.toml"
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
    device = find_hardware(machine).device
    if device is None:
        raise OptionError(f"--device {name}: {machine} has no accelerator", _HINT)
    return _checked(name, device.scaled(scale))


def _scale(name: str, text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0):
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
    return device
