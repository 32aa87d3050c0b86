"""A GGUF file's keys by their short names, with types and ranges checked."""

from array import array
from dataclasses import dataclass
from typing import Any

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.gguf_values import brief
from flexinfer.models.gguf_facts import FACTS, ArchitectureFacts

_MAX_INTEGER = (1 << 31) - 1
_LEAST_NUMBER, _MAX_NUMBER = 2.0**-126, 2.0**127  # sound in float32, which is computed in


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the file's architecture; where one is absent, the fact that stands for it."""

    checkpoint: Checkpoint
    architecture: str
    facts: ArchitectureFacts

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.checkpoint.path}: {what}", "use a sound file")

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.checkpoint.path}: {what}", f"supported are plain {', '.join(FACTS)} models"
        )

    def get(self, key: str, default: Any = None) -> Any:
        default = self.facts.defaults.get(key, default)
        return self.checkpoint.metadata.get(self.full(key), default)

    def _required(self, key: str, default: object) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.fail(f"the key {self.full(key)} is missing")
        return value

    def integer(self, key: str, default: int | None = None, *, uniform: bool = False) -> int:
        """A positive integer; with `uniform` also a per-layer array of one and the same."""
        value = self._required(key, default)
        if uniform and isinstance(value, array) and len(value):
            if any(element != value[0] for element in value):
                raise self.unsupported(
                    f"{self.full(key)} differs from layer to layer, which FlexInfer does not know"
                )
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_INTEGER:
            raise self.fail(f"{self.full(key)} is {brief(value)}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, neither beyond float32 nor below what it holds in full."""
        value = self._required(key, default)
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise self.fail(f"{self.full(key)} is {brief(value)}, not a number")
        if not _LEAST_NUMBER <= value <= _MAX_NUMBER:  # nor NaN
            raise self.fail(f"{self.full(key)} is {brief(value)}, not a positive number of use")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As `number`; None where it is absent or 0, which means the same."""
        return self.number(key) if self.get(key, 0) != 0 else None


def open_keys(checkpoint: Checkpoint) -> Keys:
    """The keys of a checkpoint of a known architecture. FormatError, UnsupportedError."""
    architecture = checkpoint.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(
            f"{checkpoint.path}: the key general.architecture is missing or no string",
            "use a sound file",
        )
    if architecture not in FACTS:
        raise UnsupportedError(
            f"{checkpoint.path}: the architecture {brief(architecture)} is not supported",
            f"supported are {', '.join(FACTS)}",
        )
    return Keys(checkpoint, architecture, FACTS[architecture])
