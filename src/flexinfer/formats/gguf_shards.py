"""A GGUF model split over several files, given by any one of them.

Names and keys as `llama-gguf-split` writes them: NAME-00001-of-00003.gguf, the model's metadata in
the first, `split.no`, `split.count` and `split.tensors.count` in each.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexinfer.errors import FormatError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.gguf import GGUFCheckpoint, open_gguf

_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_AGAIN = "download all shards of one model into one folder"


@dataclass(frozen=True, slots=True)
class SplitCheckpoint:
    """The shards in order, as one model."""

    shards: tuple[GGUFCheckpoint, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def path(self) -> Path:
        return self.shards[0].path

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.shards[0].metadata

    def check(self) -> None:
        for shard in self.shards:
            shard.check()


def is_shard(checkpoint: GGUFCheckpoint) -> bool:
    """Whether the file is one of several."""
    count = checkpoint.metadata.get("split.count", 1)
    return isinstance(count, int) and count > 1


def open_shards(given: GGUFCheckpoint) -> SplitCheckpoint:
    """Open the shards beside `given`. FormatError for one that is missing or of another model."""
    count = int(given.metadata["split.count"])
    name = _NAME.fullmatch(given.path.name)
    if name is None or int(name[3]) != count:
        raise FormatError(
            f"{given.path}: is shard {given.metadata.get('split.no')} of {count} (split.count), "
            "but is not named so",
            f"name it like model-00001-of-{count:05}.gguf; {_AGAIN}",
        )
    paths = [
        given.path.with_name(f"{name[1]}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise FormatError(
            f"{given.path.parent}: {len(missing)} of {count} shards are missing: "
            f"{', '.join(missing[:3])}{', …' * (len(missing) > 3)}",
            _AGAIN,
        )
    shards = tuple(given if path == given.path else open_gguf(path) for path in paths)
    tensors: dict[str, TensorInfo] = {}
    announced = shards[0].metadata.get("split.tensors.count")
    for index, shard in enumerate(shards):
        place = (shard.metadata.get("split.no"), shard.metadata.get("split.count"))
        if place != (index, count) or shard.metadata.get("split.tensors.count") != announced:
            raise FormatError(
                f"{shard.path}: says that it is shard {place[0]} of {place[1]}; "
                f"{paths[0].name} needs shard {index} of {count}, of {announced} tensors in all",
                _AGAIN,
            )
        if twice := tensors.keys() & shard.tensors.keys():
            raise FormatError(
                f"{shard.path}: holds the tensor {min(twice)}, as another shard does", _AGAIN
            )
        tensors |= shard.tensors
    if announced is not None and len(tensors) != announced:
        raise FormatError(
            f"{paths[0]}: the shards hold {len(tensors)} tensors, split.tensors.count says "
            f"{announced}",
            _AGAIN,
        )
    return SplitCheckpoint(shards, tensors)
