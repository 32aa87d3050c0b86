"""Real file systems for the tests: made, mounted in a folder of the test's own, and taken away.

They need root. Where one cannot be had, the test that asks for it is skipped with the reason, or
fails where FLEXINFER_TEST_MOUNTS is `required`, as in CI.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import pytest

from flexinfer.units import MiB

# What makes each kind in an image, and how large that is at least (a hole, so it takes no room).
MAKERS = {
    "ext4": (["mkfs.ext4", "-q"], 32 * MiB),
    "xfs": (["mkfs.xfs", "-q"], 300 * MiB),
    "btrfs": (["mkfs.btrfs", "-q", "-m", "single", "-d", "single"], 128 * MiB),
}


def lacking(what: str) -> NoReturn:
    """Ends the test that asked for it."""
    if os.environ.get("FLEXINFER_TEST_MOUNTS") == "required":
        pytest.fail(f"FLEXINFER_TEST_MOUNTS is required, but {what}")
    pytest.skip(what)


class Mounts:
    """Mounts of one test; `close` takes all away. Their names have spaces and other letters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "my disks – für 日本"
        self.folder.mkdir()
        self._mounted: list[Path] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        if os.geteuid() != 0:
            lacking("mounting needs root")

    def memory(self, kind: str, *options: str) -> Path:
        """tmpfs or ramfs."""
        return self._mount(kind, kind, *options)

    def image(self, kind: str, sector_bytes: int = 512) -> Path:
        """An empty file system on a loop device; its image lies beside it, see `image_of`."""
        command, size_bytes = MAKERS[kind]
        image = self._image(kind)
        with image.open("wb") as hole:
            hole.truncate(size_bytes)
        device = self._loop(image, sector_bytes)
        try:
            run(*command, device)
            return self._mount(kind, device)
        finally:
            run("losetup", "--detach", device)  # once it is unmounted

    def squashfs(self, content: Path) -> Path:
        """The files of a folder, read-only and not compressed; takes no direct reads."""
        image = self._image("squashfs")
        run("mksquashfs", content, image, "-quiet", "-noI", "-noD", "-noF", "-noX", "-no-progress")
        device = self._loop(image, 512)
        try:
            return self._mount("squashfs", device, "ro")
        finally:
            run("losetup", "--detach", device)

    def overlay(self, lower: Path) -> Path:
        return self._mount("overlay", "overlay", *self._layers(lower))

    def fuse(self, lower: Path) -> tuple[Path, subprocess.Popen[bytes]]:
        """An overlay in user space, and the process that serves it."""
        if shutil.which("fuse-overlayfs") is None:
            lacking("there is no fuse-overlayfs")
        point = self._point("fuse")
        options = ",".join(self._layers(lower))
        daemon = subprocess.Popen(
            ["fuse-overlayfs", "-f", "-o", options, str(point)],
            stderr=subprocess.PIPE,
        )
        self._daemons.append(daemon)
        while not point.is_mount():
            if daemon.poll() is not None:
                assert daemon.stderr
                lacking(f"fuse-overlayfs cannot be mounted: {daemon.stderr.read().decode()}")
            time.sleep(0.01)
        self._mounted.append(point)
        return point, daemon

    def image_of(self, point: Path) -> Path:
        return point.with_name(f"{point.name}.img")

    def take_away(self, point: Path) -> None:
        """Lazily: files in it that are open stay so, nobody finds it any more."""
        run("umount", "--lazy", point)
        self._mounted.remove(point)

    def close(self) -> None:
        for point in reversed(self._mounted):
            run("umount", "--lazy", point)
        for daemon in self._daemons:
            daemon.kill()
            daemon.communicate()

    def _layers(self, lower: Path) -> list[str]:
        upper, work = self.folder / "upper", self.folder / "work"
        for folder in (upper, work):
            folder.mkdir()
        return [f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}"]

    def _loop(self, image: Path, sector_bytes: int) -> str:
        found = run("losetup", "--find", "--show", "--sector-size", sector_bytes, image)
        return found.strip()

    def _image(self, kind: str) -> Path:
        return self.folder / f"{kind}.img"

    def _point(self, kind: str) -> Path:
        point = self.folder / kind
        point.mkdir()
        return point

    def _mount(self, kind: str, device: str, *options: str) -> Path:
        point = self._point(kind)
        more = ["-o", ",".join(options)] if options else []
        run("mount", "-t", kind, *more, device, point)
        self._mounted.append(point)
        return point


def run(*argv: object) -> str:
    """The output of a command that has to work for the test to go on."""
    try:
        done = subprocess.run(
            [str(arg) for arg in argv],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )
    except FileNotFoundError:
        lacking(f"there is no {argv[0]}")
    except subprocess.CalledProcessError as error:
        lacking(f"`{' '.join(error.cmd)}` says: {error.stderr.strip()}")
    return done.stdout
