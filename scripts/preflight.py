"""Say in one go what this machine lacks to build FlexInfer. Runs on any Python 3."""

import importlib.util
import os
import shutil
import sys
import sysconfig


def missing():
    """(what, Debian package) of each thing that is not there."""
    if sys.version_info < (3, 11):  # noqa: UP036
        found = sys.version.split()[0]
        yield (
            f"Python 3.11 or later (this is {found}; another one: make PYTHON=python3.12)",
            "python3",
        )
    if not importlib.util.find_spec("ensurepip") or not importlib.util.find_spec("venv"):
        yield "Python's venv and ensurepip", "python3-venv"
    header = os.path.join(sysconfig.get_path("include"), "Python.h")  # noqa: PTH118
    if not os.path.exists(header):  # noqa: PTH110
        yield f"Python's headers ({header})", "python3-dev"
    if not any(map(shutil.which, [os.environ.get("CXX") or "c++", "g++", "clang++"])):
        yield "a C++20 compiler", "g++"


def main():
    if not sys.platform.startswith("linux"):
        sys.exit(f"error: FlexInfer runs on Linux, this is {sys.platform}")
    lacks = list(missing())
    for what, _ in lacks:
        print(f"error: missing {what}", file=sys.stderr)
    if lacks:
        packages = " ".join(package for _, package in lacks)
        sys.exit(f"hint: on Debian or Ubuntu: sudo apt install {packages}")


main()
