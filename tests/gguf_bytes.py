"""GGUF headers written byte by byte, so that tests can make every mistake."""

from collections.abc import Sequence
from struct import pack

UINT8, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 5, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + pack("<I", kind) + value


def strings(key: str, values: Sequence[str | bytes]) -> bytes:
    return entry(key, ARRAY, pack("<IQ", STRING, len(values)) + b"".join(map(text, values)))


def tensor(name: str | bytes, shape: Sequence[int], offset: int = 0, type_id: int = 0) -> bytes:
    """One entry of the tensor table; `shape` as in the file: innermost first."""
    return text(name) + pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    alignment: int = 32,
    version: int = 3,
    entry_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A whole file: header, padding, data. The counts may lie."""
    header = b"GGUF" + pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if entry_count is None else entry_count,
    )
    header += b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data
