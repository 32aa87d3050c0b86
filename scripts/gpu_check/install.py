"""Builds the package from the checkout, or takes a wheel, into a folder of its own: without
network, with the tools and the torch that are here. Runs on any Python 3.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 6)
# Imported by what the check runs; tokenizers, sentencepiece and jinja2 are for text, of which its
# models have none.
NEEDED = ("numpy", "platformdirs", "torch")
BUILD_MODULES = {"scikit_build_core": "scikit-build-core", "nanobind": "nanobind"}
BUILD_COMMANDS = ("cmake", "ninja")


class Lacking(Exception):
    """What is missing here, and how to get it."""


def check_runtime():
    """Raises Lacking where this Python, torch or a library does not suffice."""
    if sys.version_info < LEAST_PYTHON:
        raise Lacking(
            f"FlexInfer needs Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or later, this is "
            f"{sys.version.split()[0]}; another one: make gpu-check PYTHON=python3.12"
        )
    missing = [name for name in NEEDED if not importlib.util.find_spec(name)]
    if missing:
        raise Lacking(
            f"{', '.join(missing)} cannot be imported by {sys.executable}: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )
    from importlib.metadata import version

    found = version("torch")
    if tuple(map(int, found.split(".")[:2])) < LEAST_TORCH:
        raise Lacking(f"torch {found} is here, 2.6 or later is needed")


def install(root, target, wheel):
    """Puts the package into `target`, a folder for PYTHONPATH. Raises Lacking."""
    if wheel is None:
        _check_build_tools()
    elif not Path(wheel).is_file():
        raise Lacking(f"there is no wheel {wheel}")
    if not importlib.util.find_spec("pip"):
        raise Lacking(f"{sys.executable} has no pip; on Debian or Ubuntu: apt install python3-pip")
    if target.exists():
        shutil.rmtree(target)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run(
        [*command, str(wheel or root)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise Lacking("pip could not install it:\n" + "\n".join(done.stdout.splitlines()[-20:]))


def _check_build_tools():
    modules = [name for m, name in BUILD_MODULES.items() if not importlib.util.find_spec(m)]
    commands = [
        name
        for name in BUILD_COMMANDS
        if not importlib.util.find_spec(name) and not shutil.which(name)
    ]
    missing = []
    if modules or commands:
        packages = " ".join([*modules, *commands])
        missing.append(f"{packages} ({sys.executable} -m pip install {packages})")
    if not any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))):
        missing.append("a C++20 compiler (apt install g++)")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        missing.append(f"Python's headers, {header} (apt install python3-dev)")
    if missing:
        raise Lacking(
            "to build the package there is no "
            + ", no ".join(missing)
            + "; or build a wheel where "
            "these are, for the same Python (pip wheel --no-deps .), and give GPU_CHECK_WHEEL=FILE"
        )
