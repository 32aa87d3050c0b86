"""GGUF's keys and values: a bounded reader of headers, and metadata decoding arrays when asked.

Layout and value types: the GGUF specification (ggml, docs/gguf.md).
"""

import os
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexinfer.errors import FormatError, ReadError, UnsupportedError

UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9
# value type id -> struct code, which is the array typecode as well
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_LENGTH = struct.Struct("<Q")

_START_AGAIN = "is the file still being written? Start again when it is complete"

_WINDOW_BYTES = 1 << 16  # for single values
_PIECE_BYTES = 1 << 20  # for walking over string arrays
_KEPT_STRING_BYTES = 1 << 12  # longer strings are decoded on access, as arrays are
# Far above any real model; they bound the time that a hostile header can take.
_MAX_NAME_BYTES = 0xFFFF
_MAX_STRINGS = 1 << 22
_MAX_HEADER_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class StoredValue:
    """An array or a long string left in the file. `element` is None for a string."""

    offset_bytes: int
    size_bytes: int
    element: int | None
    count: int


class HeaderReader:
    """Reads a header front to back with every length checked against the file before it is used.

    Raises FormatError where the header runs past the end of the file.
    """

    def __init__(self, fd: int, path: Path, file_bytes: int) -> None:
        self.fd = fd
        self.path = path
        self.file_bytes = file_bytes
        self.offset_bytes = 0
        self._window = b""
        self._window_start = 0
        self._strings = 0

    def fail(self, what: str, hint: str | None = None) -> FormatError:
        return FormatError(f"{self.path}: {what}", hint or "the file is damaged: download it again")

    def _reserve(self, size_bytes: int, what: str) -> None:
        end = self.offset_bytes + size_bytes
        if end > self.file_bytes:
            raise self.fail(
                f"the header is cut or damaged: {what} would end at byte {end}, "
                f"the file has {self.file_bytes} bytes"
            )
        if end > _MAX_HEADER_BYTES:
            raise self.fail(
                f"{what} would end at byte {end}, but a header of more than "
                f"{_MAX_HEADER_BYTES} bytes is not read"
            )

    def take(self, size_bytes: int, what: str) -> bytes:
        """The next bytes; only for sizes of a name or a kept string."""
        self._reserve(size_bytes, what)
        start = self.offset_bytes - self._window_start
        if start + size_bytes > len(self._window):
            self._window = os.pread(self.fd, max(size_bytes, _WINDOW_BYTES), self.offset_bytes)
            self._window_start, start = self.offset_bytes, 0
        piece = self._window[start : start + size_bytes]
        if len(piece) < size_bytes:
            raise ReadError(f"{self.path}: the file shrank while its header was read", _START_AGAIN)
        self.offset_bytes += size_bytes
        return piece

    def number(self, kind: int, what: str) -> Any:
        code = _NUMBERS[kind]
        piece = self.take(struct.calcsize(code), what)
        if kind == BOOL and piece[0] > 1:
            raise self.fail(f"{what} is a boolean of value {piece[0]}")
        return struct.unpack("<" + code, piece)[0]

    def name(self, what: str) -> str:
        """A key or a tensor's name."""
        length = self.number(10, f"the length of {what}")
        if length > _MAX_NAME_BYTES:
            raise self.fail(f"{what} has {length} bytes; names have at most {_MAX_NAME_BYTES}")
        return self.decode(self.take(length, what), what)

    def decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not valid UTF-8: {raw[:64]!r}") from error

    def value(self, kind: int, what: str) -> Any:
        """One value; arrays and long strings as StoredValue."""
        if kind in _NUMBERS:
            return self.number(kind, what)
        if kind == STRING:
            length = self.number(10, f"the length of {what}")
            if length <= _KEPT_STRING_BYTES:
                return self.decode(self.take(length, what), what)
            self._reserve(length, what)
            stored = StoredValue(self.offset_bytes, length, None, length)
            self.offset_bytes += length
            return stored
        if kind == ARRAY:
            return self._array(what)
        raise self.fail(f"{what} has value type {kind}, which GGUF does not define")

    def _array(self, what: str) -> StoredValue:
        element = self.number(UINT32, f"the element type of {what}")
        count = self.number(10, f"the length of {what}")
        start = self.offset_bytes
        if element in _NUMBERS:
            size = count * struct.calcsize(_NUMBERS[element])
            self._reserve(size, what)
            self.offset_bytes += size
        elif element == STRING:
            self._skip_strings(count, what)
        elif element == ARRAY:
            raise UnsupportedError(
                f"{self.path}: {what} is an array of arrays, which FlexInfer does not read",
                "no known model has one: download the file again",
            )
        else:
            raise self.fail(f"{what} has element type {element}, which GGUF does not define")
        return StoredValue(start, self.offset_bytes - start, element, count)

    def _skip_strings(self, count: int, what: str) -> None:
        self._reserve(count * _LENGTH.size, what)
        self._strings += count
        if self._strings > _MAX_STRINGS:
            raise self.fail(
                f"{what} has {count} strings; a header holds at most {_MAX_STRINGS} in arrays"
            )
        unpack = _LENGTH.unpack_from
        while count:
            piece = os.pread(self.fd, _PIECE_BYTES, self.offset_bytes)
            last, at = len(piece) - _LENGTH.size, 0
            while count and at <= last:
                at += _LENGTH.size + unpack(piece, at)[0]
                count -= 1
            self._reserve(at + count * _LENGTH.size, what)
            if not at:
                raise ReadError(
                    f"{self.path}: the file shrank while its header was read", _START_AGAIN
                )
            self.offset_bytes += at


class Metadata(Mapping[str, Any]):
    """Keys and values. Numbers, booleans and short strings are held; the rest is read on access.

    Arrays of strings and of booleans decode to a list, of numbers to `array.array`. Nothing decoded
    is kept: hold on to a value rather than ask twice. Raises ReadError where the file no longer has
    the bytes, FormatError where a string is not UTF-8.
    """

    __slots__ = ("_path", "_values")

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return self._decode(key, value) if isinstance(value, StoredValue) else value

    def _decode(self, key: str, stored: StoredValue) -> Any:
        raw = read_range(self._path, stored.offset_bytes, stored.size_bytes)
        if stored.element is None:
            return self._text(key, raw)
        if stored.element == STRING:
            return self._strings(key, raw, stored.count)
        if stored.element == BOOL:
            return [byte != 0 for byte in raw]
        numbers = array(_NUMBERS[stored.element], raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def _text(self, key: str, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{self._path}: the value of {key} is not valid UTF-8: {raw[error.start :][:16]!r}",
                "the file is damaged: download it again",
            ) from error

    def _strings(self, key: str, raw: bytes, count: int) -> list[str]:
        texts = []
        at = 0
        for _ in range(count):
            start = at + _LENGTH.size
            if start > len(raw):
                break
            at = start + _LENGTH.unpack_from(raw, at)[0]
            texts.append(self._text(key, raw[start:at]))
        if at != len(raw) or len(texts) != count:
            raise ReadError(
                f"{self._path}: the file changed since its header was read ({key})", _START_AGAIN
            )
        return texts


def read_range(path: Path, offset_bytes: int, size_bytes: int) -> bytes:
    """`size_bytes` bytes from `offset_bytes` on. Raises ReadError unless the file has them all."""
    try:
        with path.open("rb") as file:
            file.seek(offset_bytes)
            raw = file.read(size_bytes)
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}", _START_AGAIN) from error
    if len(raw) != size_bytes:
        raise ReadError(
            f"{path}: bytes {offset_bytes} to {offset_bytes + size_bytes} are no longer there; "
            f"the file was cut or replaced since its header was read",
            _START_AGAIN,
        )
    return raw


def brief(value: object) -> str:
    """A value for a message."""
    return f"an array of {len(value)}" if isinstance(value, array | list) else repr(value)[:80]
