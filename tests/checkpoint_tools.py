"""Checkpoints with something else in their header."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flexinfer.formats.gguf import GGUFCheckpoint


def changed(checkpoint: GGUFCheckpoint, keys: Mapping[str, Any]) -> GGUFCheckpoint:
    """The checkpoint with keys set, or removed where the value is None."""
    metadata = {**checkpoint.metadata, **keys}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return replace(checkpoint, metadata=kept)


def without(checkpoint: GGUFCheckpoint, *names: str) -> GGUFCheckpoint:
    tensors = {name: info for name, info in checkpoint.tensors.items() if name not in names}
    return replace(checkpoint, tensors=tensors)
