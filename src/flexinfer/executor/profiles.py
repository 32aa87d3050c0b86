"""Profiles that `flexinfer profile` stored, by machine; disks by the place of a model's file."""

import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from flexinfer import _kernels
from flexinfer.errors import FlexInferError
from flexinfer.memory import machine
from flexinfer.memory.machine import Roots
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import Hardware, Host
from flexinfer.planner.hardware_file import (
    disk_from_table,
    disk_table,
    host_from_table,
    host_table,
)
from flexinfer.planner.tables import Table
from flexinfer.streaming.place import file_system

FORM = 1  # of the file; another one is not read


@dataclass(frozen=True, slots=True)
class Key:
    """What a profile is of: the rates of another machine, instruction set or number of threads are
    others.
    """

    processor: str
    processors: int
    threads: int
    isa: str
    version: str

    @property
    def path(self) -> Path:
        name = sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return user_cache_path("flexinfer") / f"profile-{name}.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """The host and the disks measured so far, by place."""

    host: Host
    disks: dict[str, Disk]

    def hardware(self, disk: Disk) -> Hardware:
        return Hardware("this machine", "profile", disk, self.host)


def profile_key(context: _kernels.Context) -> Key:
    name = machine.processor(Roots()).name or "unknown"
    allowed = len(os.sched_getaffinity(0))
    return Key(name, allowed, context.threads, context.isa, version("flexinfer"))


def disk_place(path: Path) -> str:
    """What tells one disk from another: its device and where it is mounted."""
    found = file_system(path)
    return "unknown" if found is None else f"{found.device} ({found.kind}) at {found.mount_point}"


def load_profile(key: Key) -> Profile | None:
    """None where there is none, or one that cannot be read: the probe then takes its place."""
    try:
        stored = json.loads(key.path.read_text())
        if stored["form"] != FORM or stored["machine"] != asdict(key):
            return None
        where = str(key.path)
        host = host_from_table(Table(stored["host"], where))
        disks = {
            place: disk_from_table(Table(values, where))
            for place, values in stored["disks"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    except FlexInferError:  # a number beyond its limits
        return None
    return Profile(host, disks)


def store_profile(key: Key, profile: Profile) -> None:
    """In one step, so that no reader sees half of it. Raises OSError."""
    key.path.parent.mkdir(parents=True, exist_ok=True)
    beside = key.path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(as_table(key, profile), indent=1) + "\n")
    beside.replace(key.path)


def as_table(key: Key, profile: Profile) -> dict[str, Any]:
    """What is stored, and what `profile --json` prints."""
    return {
        "form": FORM,
        "machine": asdict(key),
        "host": host_table(profile.host),
        "disks": {place: disk_table(disk) for place, disk in profile.disks.items()},
    }
