"""Which control groups this process is in, of either version, as high up as it can see."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def system_text(path: Path) -> str:
    """A file of the kernel's. The names in it, of mounts and groups, need not be UTF-8."""
    return os.fsdecode(path.read_bytes())


@dataclass(frozen=True, slots=True)
class Level:
    """One control group that holds this process: its folder, and the version of its hierarchy."""

    folder: Path
    version: int

    def text(self, name: str) -> str | None:
        """The contents of one of its files, stripped; None where it has no such file."""
        try:
            return system_text(self.folder / name).strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """The number in one of its files; None without the file and for "max"."""
        text = self.text(name)
        return int(text) if text and re.fullmatch(r"-?\d+", text) else None

    def table(self, name: str) -> dict[str, int]:
        """A file of lines "key number"."""
        pairs = (line.split() for line in (self.text(name) or "").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def levels(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[Level]:
    """Every level above us that `controller` could limit, the innermost first, of both versions.

    A mount shows a hierarchy from its `root` down. In a container our own path can lie outside of
    that (namespaces, bind mounts): then the top of the mount is the nearest level in sight.
    """
    for root, point, version in _mounts(controller, proc, cgroups):
        path = _own_path(controller if version == 1 else "", proc)
        if path is None:
            continue
        inside = path == root or path.startswith(root.rstrip("/") + "/")
        below = path[len(root.rstrip("/")) :].strip("/") if inside else ""
        folder = point if ".." in Path(below).parts else point / below
        if not folder.is_dir():
            folder = point
        yield Level(folder, version)
        while folder != point:
            folder = folder.parent
            yield Level(folder, version)


def _own_path(controller: str, proc: Path) -> str | None:
    """Our path in the hierarchy of `controller` ("": version 2's). Lines: "id:controllers:path"."""
    for line in system_text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _mounts(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[str, Path, int]]:
    """(root, mount point, version) of each mounted hierarchy that can have `controller`."""
    for line in system_text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, point = (unescape(field) for field in before.split(" ")[3:5])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            if Path(point).is_relative_to(CGROUPS):
                folder = cgroups / Path(point).relative_to(CGROUPS)
            else:
                folder = Path(point)
            yield root, folder, 2 if kind == "cgroup2" else 1


def unescape(field: str) -> str:
    """A path of mountinfo: space, tab, newline and backslash are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
