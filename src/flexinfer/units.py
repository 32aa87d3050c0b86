"""Sizes and numbers as people write them: `8GiB`, `512MB`, `1048576`, `0.7`."""

import math
import re

from flexinfer.errors import OptionError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = _UNITS[_letter] = 1024**_power

_MAX_DIGITS = 30  # far beyond any memory; floats end at 308

MiB = 1024**2
GiB = 1024**3


def parse_bytes(text: str | int) -> int:
    """Bytes of a size such as `4GiB`, `1.5 GB` or `4096`. Raises OptionError."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if not match or match[2].upper() not in _UNITS or len(match[1]) > _MAX_DIGITS:
        raise OptionError(
            f"not a size: {text!r:.80}", "write for example 8GiB, 512MiB, 4GB or 1073741824"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_whole(text: str) -> int:
    """A whole number in plain digits: int() takes `1_0`, ` 7 ` and the digits of every script, too.
    Raises OptionError.
    """
    if not re.fullmatch(r"[+-]?[0-9]+", text) or len(text) > _MAX_DIGITS:
        raise OptionError(f"not a whole number: {text!r:.80}", "write for example 512")
    return int(text)


def parse_number(text: str) -> float:
    """A finite number in plain digits, as parse_whole. Raises OptionError."""
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    if not plain or not math.isfinite(number := float(text)):
        raise OptionError(f"not a number: {text!r:.80}", "write for example 0.7")
    return number


def format_bytes(n: int) -> str:
    """`n` bytes for people: three significant digits, binary units."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return (
                f"{n} B"
                if unit == "B"
                else f"{value:.3g} {unit}"
                if value < 100
                else f"{value:.0f} {unit}"
            )
        value /= 1024
    return f"{value:.2f} TiB"
