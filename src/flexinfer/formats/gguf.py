"""A strict reader of GGUF headers, versions 2 and 3, little endian.

Only the header is read, in pieces and never through a mapping (a mapped file that shrinks kills the
process); arrays stay in the file. Layout: the GGUF specification (ggml, docs/gguf.md).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexinfer.errors import FormatError, UnsupportedError
from flexinfer.formats.checkpoint import FileIdentity, TensorInfo
from flexinfer.formats.gguf_values import UINT32, HeaderReader, Metadata
from flexinfer.formats.quants import BLOCK_TYPES, REMOVED_TYPES
from flexinfer.formats.sniff import HEAD_BYTES, describe_foreign

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT_UNIT = 8
_MAX_DIMENSIONS = 4
_MAX_SIZE = (1 << 63) - 1  # of a dimension or a number of values, as in ggml
_UINT64 = 10
# The least that one entry can take; with these, counts are held against the file's size.
_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
# Far above any real model; they bound the time that a hostile header can take.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17


@dataclass(frozen=True, slots=True)
class GGUFCheckpoint:
    """One GGUF file with its header read; `tensors` in the file's order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    identity: FileIdentity
    version: int
    alignment: int

    @property
    def file_bytes(self) -> int:
        return self.identity.size_bytes

    def check(self) -> None:
        self.identity.check(self.path)


def open_gguf(path: Path) -> GGUFCheckpoint:
    """Reads and checks the header; every tensor then lies inside the file, alone and aligned.

    Raises FormatError for a damaged file or one that is no GGUF, UnsupportedError for a sound one
    that we cannot read.
    """
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        identity = FileIdentity.of(os.fstat(fd))
        reader = HeaderReader(fd, path, identity.size_bytes)
        version = _read_preamble(reader)
        tensor_count = _read_count(reader, "tensors", _LEAST_TENSOR_BYTES, _MAX_TENSORS)
        key_count = _read_count(reader, "keys", _LEAST_KEY_BYTES, _MAX_KEYS)
        values = _read_values(reader, key_count)
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        tensors = _read_tensors(reader, tensor_count, alignment)
    _check_extents(reader, tensors)
    return GGUFCheckpoint(path, Metadata(path, values), tensors, identity, version, alignment)


def _read_preamble(reader: HeaderReader) -> int:
    """The version, once magic, byte order and version are known to be ours."""
    if reader.file_bytes == 0:
        raise reader.fail("the file is empty", "download it again")
    head = os.pread(reader.fd, HEAD_BYTES, 0)
    if not head.startswith(b"GGUF"):
        what, hint = describe_foreign(head)
        raise FormatError(f"{reader.path}: the file {what}", hint)
    reader.take(4, "the magic")
    version: int = reader.number(UINT32, "the version")
    if version in _VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{reader.path}: the file is big-endian GGUF; FlexInfer reads little-endian files",
            "convert it with `gguf-convert-endian`, or download the little-endian file",
        )
    if version == 1:
        raise UnsupportedError(
            f"{reader.path}: the file is GGUF version 1; FlexInfer reads versions 2 and 3",
            "convert the original model again, or download a newer file",
        )
    raise UnsupportedError(
        f"{reader.path}: the file is GGUF version {version}; FlexInfer reads versions 2 and 3",
        "use a newer FlexInfer, or a file of version 3",
    )


def _read_count(reader: HeaderReader, things: str, least_bytes: int, most: int) -> int:
    count: int = reader.number(_UINT64, f"the number of {things}")
    fit = (reader.file_bytes - reader.offset_bytes) // least_bytes
    if count > fit:
        raise reader.fail(
            f"the header announces {count} {things}; a file of {reader.file_bytes} bytes has room "
            f"for at most {fit}"
        )
    if count > most:
        raise reader.fail(
            f"the header announces {count} {things}; at most {most} are read", "use a sound file"
        )
    return count


def _read_values(reader: HeaderReader, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for index in range(count):
        key = reader.name(f"key {index}")
        if key in values:
            raise reader.fail(f"the key {key!r} occurs twice")
        kind = reader.number(UINT32, f"the type of {key}")
        if key == "general.alignment" and kind != UINT32:
            raise reader.fail(f"general.alignment has value type {kind}, not {UINT32} (uint32)")
        values[key] = value = reader.value(kind, f"the value of {key}")
        if key == "general.alignment" and (value == 0 or value % _ALIGNMENT_UNIT):
            raise reader.fail(
                f"general.alignment is {value}, not a positive multiple of {_ALIGNMENT_UNIT}"
            )
    return values


def _read_tensors(reader: HeaderReader, count: int, alignment: int) -> dict[str, TensorInfo]:
    """The table of tensors, with offsets from the start of the file."""
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        name = reader.name(f"the name of tensor {index}")
        if name in found:
            raise reader.fail(f"the tensor {name} occurs twice")
        found[name] = _read_tensor(reader, name, alignment)
    data_start = -(-reader.offset_bytes // alignment) * alignment
    tensors = {}
    for name, (shape, type_id, offset) in found.items():
        block_type = BLOCK_TYPES[type_id]
        size = block_type.row_bytes(shape[-1])
        for dimension in shape[:-1]:
            size *= dimension
        tensors[name] = TensorInfo(name, shape, block_type, reader.path, data_start + offset, size)
    return tensors


def _read_tensor(
    reader: HeaderReader, name: str, alignment: int
) -> tuple[tuple[int, ...], int, int]:
    """Shape (outermost first), type id and offset from the start of the data, checked alone."""
    dimensions = reader.number(UINT32, f"the number of dimensions of {name}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise reader.fail(
            f"the tensor {name} has {dimensions} dimensions, not 1 to {_MAX_DIMENSIONS}"
        )
    shape = tuple(reader.number(_UINT64, f"the shape of {name}") for _ in range(dimensions))[::-1]
    values = 1
    for dimension in shape:
        values *= dimension
    if not values or values > _MAX_SIZE:
        raise reader.fail(f"the tensor {name} has the impossible shape {list(shape)}")
    type_id = reader.number(UINT32, f"the type of {name}")
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None:
        removed = REMOVED_TYPES.get(type_id)
        what = f"type {removed}, which was taken back" if removed else f"unknown type id {type_id}"
        raise UnsupportedError(
            f"{reader.path}: the tensor {name} has the {what}",
            "use a file quantised as Q4_K_M, Q8_0 or another common type",
        )
    if shape[-1] % block_type.block_values:
        raise reader.fail(
            f"the tensor {name} has rows of {shape[-1]} values, not a multiple of the "
            f"{block_type.block_values} in a block of {block_type.name}"
        )
    offset = reader.number(_UINT64, f"the offset of {name}")
    if offset % alignment:
        raise reader.fail(
            f"the tensor {name} lies at offset {offset}, no multiple of the alignment {alignment}"
        )
    return shape, type_id, offset


def _check_extents(reader: HeaderReader, tensors: dict[str, TensorInfo]) -> None:
    """Every tensor inside the file, no two on the same bytes."""
    before: TensorInfo | None = None
    for tensor in sorted(tensors.values(), key=lambda t: t.offset_bytes):
        end = tensor.offset_bytes + tensor.size_bytes
        if end > reader.file_bytes:
            raise reader.fail(
                f"the file is cut: the tensor {tensor.name} would end at byte {end}, "
                f"the file has {reader.file_bytes} bytes",
                "the download or copy is incomplete: download the file again",
            )
        if before and before.offset_bytes + before.size_bytes > tensor.offset_bytes:
            raise reader.fail(
                f"the tensors {before.name} and {tensor.name} overlap: the first ends at byte "
                f"{before.offset_bytes + before.size_bytes}, the second starts at "
                f"{tensor.offset_bytes}"
            )
        before = tensor
