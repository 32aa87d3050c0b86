"""Tables of a file, checked as they are read: every fault names its file and key."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flexinfer.errors import FormatError, OptionError
from flexinfer.units import parse_bytes

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a number, both within: beyond them it is a slip, or more than floats can reckon with."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


PER_S = Limits(1, 1e18)  # bytes, operations or values a second
SECONDS = Limits(0, 3600)
SHARE = Limits(1e-6, 1)
RATIO = Limits(1e-6, 1e6)
LOST = Limits(0, 1)
MOST_COUNTED = 10**6
MOST_BYTES = 1 << 60


class Table:
    """A table of a file, its keys ticked off as they are read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.left = dict(values)
        self._where = where

    def fail(self, key: str, problem: str) -> FormatError:
        return FormatError(f"{self._where}: {key} {problem}", "see docs/planning.md for the keys")

    def missing(self, key: str) -> FormatError:
        return self.fail(key, "is missing")

    def number(self, key: str, limits: Limits, default: float | None = None) -> float:
        """A number within limits; the default is taken as it is."""
        value = self.left.pop(key, default)
        if value is None:
            raise self.missing(key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not default and not (number and limits.least <= value <= limits.most):
            raise self.fail(key, f"is {value!r:.80}; it must be a number, {limits}")
        return float(value)

    def rate(self, key: str, default: float | None = None) -> float:
        return self.number(key, PER_S, default)

    def seconds(self, key: str, default: float = 0.0) -> float:
        return self.number(key, SECONDS, default)

    def count(self, key: str, least: int = 1, default: int | None = None) -> int:
        """A whole number, from `least` on."""
        value = self.number(key, Limits(least, MOST_COUNTED), default)
        if value != int(value):
            raise self.fail(key, f"is {value!r}; it must be a whole number")
        return int(value)

    def points(self, key: str) -> tuple[tuple[int, float], ...]:
        """A rate, or rates at ascending numbers of tokens: [[1, 2e9], [64, 9e9]]."""
        if not isinstance(self.left.get(key), (list, tuple)):
            return ((1, self.rate(key)),)
        return self._pairs(
            key, ("tokens", "a rate"), lambda t: (t.count("tokens"), t.rate("a rate"))
        )

    def contention(self, key: str) -> tuple[tuple[float, float], ...]:
        """Seconds lost at ascending seconds of computing, both for every second's worth of reading:
        [[0.5, 0.1], [2, 0.6]].
        """
        if self.left.get(key, []) in ([], ()):
            self.left.pop(key, None)
            return ()
        return self._pairs(
            key,
            ("computing", "what is lost"),
            lambda t: (t.number("computing", RATIO), t.number("what is lost", LOST)),
        )

    def _pairs(
        self, key: str, names: tuple[str, str], read: "Callable[[Table], tuple[N, float]]"
    ) -> tuple[tuple[N, float], ...]:
        value, wanted = self.left.pop(key), f"pairs of {' and '.join(names)} are wanted"
        if not isinstance(value, (list, tuple)):
            raise self.fail(key, f"is {value!r:.80}; {wanted}")
        pairs: list[tuple[N, float]] = []
        for pair in value:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise self.fail(key, f"has {pair!r:.80}; {wanted}")
            named = Table(dict(zip(names, pair, strict=True)), f"{self._where}: {key}")
            pairs.append(read(named))
            if len(pairs) > 1 and pairs[-1][0] <= pairs[-2][0]:
                raise self.fail(key, f"must go by ascending {names[0]}")
        if not pairs:
            raise self.fail(key, "is empty")
        return tuple(pairs)

    def text(self, key: str, default: str) -> str:
        value = self.left.pop(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"is {value!r:.80}; it must be a text")
        return value

    def optional_size(self, key: str) -> int | None:
        value = self.left.pop(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise self.fail(key, f'is {value!r:.80}; it must be a size such as "64GiB"')
        try:
            size = parse_bytes(value)
        except OptionError as error:
            raise self.fail(key, f"is {value!r:.80}: {error}") from error
        if not 0 < size <= MOST_BYTES:
            raise self.fail(key, f"is {value!r:.80}; it must be above 0, at most 1024 PiB")
        return size

    def table(self, key: str) -> "Table":
        found = self.optional_table(key)
        if found is None:
            raise self.missing(key)
        return found

    def optional_table(self, key: str) -> "Table | None":
        value = self.left.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(key, f"is {value!r:.80}; it must be a table")
        return Table(value, f"{self._where}: {key}")

    def tables(self, key: str) -> "list[Table]":
        value = self.left.pop(key, [])
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, dict) for v in value):
            raise self.fail(key, "must be a list of tables")
        return [Table(v, f"{self._where}: {key}") for v in value]

    def expect_none_left(self) -> None:
        for key in self.left:
            raise self.fail(key, "is not known")
