"""Hardware as tables of numbers: a user's TOML file, and what a profile is stored as."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from flexinfer.errors import FormatError, OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import (
    AttentionRates,
    Device,
    Glue,
    Hardware,
    Host,
    KernelRates,
    Link,
    Source,
)
from flexinfer.planner.tables import MOST_COUNTED, PER_S, SECONDS, SHARE, Table
from flexinfer.units import parse_whole

T = TypeVar("T")

ANY = "any"  # stands for every block type that is not named
TYPES = [kind.name for kind in BLOCK_TYPES.values()]
STREAMED = 0.5  # of the speed of locked weights, where a file does not say
SERIAL = 0.7  # of the bandwidth of reads ahead, where a file does not say


def read_hardware(path: Path) -> Hardware:
    """A machine described in TOML; docs/planning.md lists its keys.

    Raises FormatError, naming the file and the key, for one that is missing, unknown or senseless.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}", "name a file, or a known machine") from error
    except (ValueError, RecursionError) as error:  # not TOML, no UTF-8, nested beyond reason
        raise FormatError(f"{path}: not TOML: {error}", "mend the file") from error
    table = Table(values, str(path))
    name = table.text("name", path.stem)
    return hardware_from_table(table, name, "file")


def hardware_from_table(table: Table, name: str, source: Source) -> Hardware:
    """Raises FormatError."""
    host = host_from_table(table.table("host"))
    device = table.optional_table("device")
    disk = disk_from_table(table.table("disk"))
    hardware = Hardware(name, source, disk, host, None if device is None else _device(device))
    table.expect_none_left()
    return hardware


def host_from_table(table: Table) -> Host:
    """Raises FormatError."""
    memory = table.rate("memory_bytes_per_s")
    kernels = _by_type(table.table("kernels"), lambda t, key: _kernel(t.table(key), memory))
    shapes = [_attention(t) for t in table.tables("attention")]
    if not shapes:
        most = max(k.ops_per_s[-1][1] for k in kernels.values())
        shapes = [AttentionRates(128, 1, most, most)]
    glue = table.optional_table("glue")
    size = table.optional_size("memory_bytes")
    host = Host(memory, kernels, tuple(shapes), _glue(glue) if glue else Glue(), size)
    table.expect_none_left()
    return host


def disk_from_table(table: Table) -> Disk:
    """Raises FormatError."""
    rates = table.optional_table("bytes_per_s_at")
    if rates is None:
        rate = table.rate("bytes_per_s")
        at = {1: table.rate("serial_bytes_per_s", SERIAL * rate), 2: rate}
    else:
        at = {_depth(rates, key): rates.rate(key) for key in list(rates.left)}
        if not at:
            raise table.missing("bytes_per_s_at")
    disk = Disk(
        at,
        table.seconds("latency_s"),
        table.number("busy", SHARE, 1.0),
        table.seconds("pause_s"),
        table.seconds("wait_s"),
        table.contention("contention"),
    )
    table.expect_none_left()
    return disk


def _depth(rates: Table, key: str) -> int:
    try:
        depth = parse_whole(key)
    except OptionError:
        depth = 0
    if not 1 <= depth <= MOST_COUNTED:
        raise rates.fail(f"{key:.80}", f"is no number of reads in flight, 1 to {MOST_COUNTED}")
    return depth


def host_table(host: Host) -> dict[str, Any]:
    """What `host_from_table` reads; infinite rates are left out."""
    table = {k: v for k, v in asdict(host).items() if v is not None}
    table["glue"] = {k: v for k, v in table["glue"].items() if math.isfinite(v)}
    return table


def disk_table(disk: Disk) -> dict[str, Any]:
    """What `disk_from_table` reads."""
    by_depth = {str(depth): rate for depth, rate in disk.bytes_per_s_at.items()}
    return asdict(disk) | {"bytes_per_s_at": by_depth}


def _kernel(table: Table, memory: float) -> KernelRates:
    rate = table.rate("bytes_per_s", memory)
    streamed = table.rate("streamed_bytes_per_s", STREAMED * rate)
    points = table.points("ops_per_s")
    more = (table.seconds(name) for name in ("streamed_group_s", "result_s"))
    kernel = KernelRates(rate, streamed, points, *more)
    table.expect_none_left()
    return kernel


def _attention(table: Table) -> AttentionRates:
    rates = AttentionRates(
        table.count("head_dim"),
        table.count("group"),
        table.rate("one_ops_per_s"),
        table.rate("many_ops_per_s"),
        table.text("kv_type", "F16"),
    )
    table.expect_none_left()
    return rates


def _glue(table: Table) -> Glue:
    default = asdict(Glue())
    replayed = table.count("replayed_tokens", 0, default.pop("replayed_tokens"))
    numbers = {
        name: table.number(name, PER_S if name.endswith("_per_s") else SECONDS, value)
        for name, value in default.items()
    }
    glue = Glue(replayed_tokens=replayed, **numbers)
    table.expect_none_left()
    return glue


def _device(table: Table) -> Device:
    size = table.optional_size("memory_bytes")
    if size is None:
        raise table.missing("memory_bytes")
    to_device = _link(table.table("to_device"))
    back = table.optional_table("to_host")
    device = Device(
        size,
        table.rate("memory_bytes_per_s"),
        _by_type(table.table("ops_per_s"), lambda t, key: t.rate(key)),
        to_device,
        _link(back) if back else to_device,
        table.seconds("layer_s"),
    )
    table.expect_none_left()
    return device


def _link(table: Table) -> Link:
    link = Link(table.rate("bytes_per_s"), table.seconds("latency_s"))
    table.expect_none_left()
    return link


def _by_type(table: Table, read: Callable[[Table, str], T]) -> dict[str, T]:
    """A value per block type; `any` is that of all that are not named."""
    named = {key: read(table, key) for key in list(table.left)}
    for key in named:
        if key not in (*TYPES, ANY):
            raise table.fail(key, f"is no block type; known: {ANY}, {', '.join(TYPES)}")
    if not named:
        raise table.missing(ANY)
    if ANY in named:
        return {kind: named.get(kind, named[ANY]) for kind in TYPES}
    return named
