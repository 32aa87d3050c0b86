"""Sizes as people write them: `8GiB`, `512MB`, `1048576`."""

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
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS or len(match[1]) > _MAX_DIGITS:
        raise OptionError(
            f"not a size: {text!r}", "write for example 8GiB, 512MiB, 4GB or 1073741824"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


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
