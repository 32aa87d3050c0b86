"""A tokenizer's keys in a model's metadata, by their short names, typed."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexinfer.errors import FormatError
from flexinfer.formats.gguf_values import brief


@dataclass(frozen=True, slots=True)
class TokenizerKeys:
    """Each array is decoded anew when asked for. Raises FormatError for a value of another type."""

    metadata: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return full(name) in self.metadata

    def text(self, name: str) -> str | None:
        value = self.metadata.get(full(name))
        if value is not None and not isinstance(value, str):
            raise _mistyped(name, value, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(full(name), default)
        if not isinstance(value, bool):
            raise _mistyped(name, value, "true or false")
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        value = self.metadata.get(full(name), default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise _mistyped(name, value, "an integer")
        return value

    def texts(self, name: str) -> list[str]:
        """An array of texts."""
        value = self._required(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise _mistyped(name, value, "an array of texts")
        return value

    def numbers(self, name: str) -> NDArray[Any]:
        """An array of numbers, one-dimensional."""
        value = self._required(name)
        numbers = np.asarray(value if isinstance(value, array | list) else "")
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
            raise _mistyped(name, value, "an array of numbers")
        return numbers

    def _required(self, name: str) -> Any:
        if name not in self:
            raise FormatError(f"{full(name)} is absent", "convert the model again")
        return self.metadata[full(name)]


def full(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def _mistyped(name: str, value: object, wanted: str) -> FormatError:
    return FormatError(f"{full(name)} is {brief(value)}, not {wanted}", "convert the model again")
