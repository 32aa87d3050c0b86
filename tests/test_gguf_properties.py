"""The GGUF reader on any file: a sound one is read as it was written, any other is refused."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import calcsize, pack

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gguf_bytes as build
from flexinfer.errors import FlexInferError, FormatError
from flexinfer.formats.gguf import open_gguf
from flexinfer.formats.open import open_checkpoint
from flexinfer.formats.quants import BLOCK_TYPES
from test_gguf import SOUND

HUGE = (1 << 63) - 1
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "any.gguf"


def number_of(kind: int) -> st.SearchStrategy[float]:
    code = NUMBERS[kind]
    if code in "fd":
        return st.floats(width=32 if code == "f" else 64, allow_nan=False)
    bits, signed = 8 * calcsize(code), code.islower()
    return st.integers(-(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)


@st.composite
def values(draw: st.DrawFn) -> tuple[int, bytes, object]:
    """A value type, its bytes, and what is to be read of them."""
    form = draw(st.sampled_from(["number", "bool", "text", "numbers", "bools", "texts"]))
    if form in ("number", "numbers"):
        kind = draw(st.sampled_from(sorted(NUMBERS)))
        numbers = draw(st.lists(number_of(kind), min_size=1, max_size=9))
        if form == "number":
            return kind, pack(f"<{NUMBERS[kind]}", numbers[0]), numbers[0]
        raw = pack(f"<IQ{len(numbers)}{NUMBERS[kind]}", kind, len(numbers), *numbers)
        return build.ARRAY, raw, numbers
    if form in ("bool", "bools"):
        flags = draw(st.lists(st.booleans(), min_size=1, max_size=9))
        if form == "bool":
            return build.BOOL, bytes(flags[:1]), flags[0]
        return build.ARRAY, pack("<IQ", build.BOOL, len(flags)) + bytes(flags), flags
    texts = draw(st.lists(st.text(max_size=9) | st.just("x" * 5000), min_size=1, max_size=9))
    if form == "text":
        return build.STRING, build.text(texts[0]), texts[0]
    raw = pack("<IQ", build.STRING, len(texts)) + b"".join(map(build.text, texts))
    return build.ARRAY, raw, texts


NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: not name.startswith(("general", "split"))
)


@dataclass(frozen=True)
class Described:
    """A file and what is in it: values by key; by tensor its shape, type and content."""

    raw: bytes
    values: dict[str, object]
    tensors: dict[str, tuple[tuple[int, ...], str, bytes]]


@st.composite
def files(draw: st.DrawFn) -> Described:
    alignment = draw(st.sampled_from([32, 8, 24, 64, 4096]))
    entries = [build.entry("general.alignment", build.UINT32, pack("<I", alignment))]
    expected: dict[str, object] = {"general.alignment": alignment}
    for key, (kind, raw, value) in draw(st.dictionaries(NAMES, values(), max_size=6)).items():
        entries.append(build.entry(key, kind, raw))
        expected[key] = value
    table, data, tensors = [], b"", {}
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    for number, name in enumerate(names):
        block_type = draw(st.sampled_from(list(BLOCK_TYPES.values())))
        blocks = draw(st.integers(1, 3))
        outer = draw(st.lists(st.integers(1, 3), max_size=3))
        shape = (blocks * block_type.block_values, *outer)
        content = bytes([number + 1]) * (blocks * block_type.block_bytes * prod(outer))
        data += bytes(draw(st.integers(0, 2)) * alignment)  # holes are sound
        table.append(build.tensor(name, shape, len(data), block_type.ggml_id))
        data += content
        data += bytes(-len(data) % alignment)
        tensors[name] = (shape[::-1], block_type.name, content)
    order = draw(st.permutations(range(len(table))))  # of the table, not of the data
    raw = build.gguf(entries, [table[i] for i in order], data, alignment=alignment)
    return Described(raw, expected, {names[i]: tensors[names[i]] for i in order})


def as_written(value: object) -> object:
    return list(value) if hasattr(value, "typecode") else value


@settings(max_examples=80)
@given(files())
def test_a_sound_file_is_read_as_it_was_written(path: Path, described: Described) -> None:
    path.write_bytes(described.raw)
    checkpoint = open_gguf(path)
    assert list(checkpoint.metadata) == list(described.values)
    assert {k: as_written(v) for k, v in checkpoint.metadata.items()} == described.values
    assert list(checkpoint.tensors) == list(described.tensors)
    for name, (shape, block_type, content) in described.tensors.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.shape, tensor.block_type.name) == (shape, block_type)
        assert described.raw[tensor.offset_bytes :][: tensor.size_bytes] == content
        assert tensor.rows * tensor.row_bytes == tensor.size_bytes


@settings(max_examples=80)
@given(files(), st.data())
def test_a_cut_file_is_refused(path: Path, described: Described, data: st.DataObject) -> None:
    """Unless all that is cut off is padding."""
    assume(described.tensors)
    end = described.raw.rstrip(b"\0")
    kept = data.draw(st.integers(0, len(end) - 1))
    path.write_bytes(described.raw[:kept])
    with pytest.raises(FormatError, match=r"cut|empty|announces|not GGUF"):
        open_gguf(path)


WILD = st.sampled_from([0, 1, HUGE, HUGE + 1, 2 * HUGE + 1, 1 << 32, 1 << 61, (1 << 64) - 32])


@settings(max_examples=200)
@given(files(), st.integers(0), WILD, st.sampled_from([4, 8]))
def test_a_count_length_or_offset_that_is_another(
    path: Path, described: Described, where: int, wild: int, width: int
) -> None:
    """Four or eight bytes anywhere in the header become a number that none would expect."""
    raw = bytearray(described.raw)
    at = 4 + where % max(1, min(len(raw), 600) - 12)
    raw[at : at + width] = pack("<Q", wild)[:width]
    read_or_refused(path, bytes(raw))


mutations = st.lists(
    st.tuples(
        st.integers(0, len(SOUND) - 1),
        st.binary(min_size=1, max_size=9) | st.sampled_from([pack("<q", -1), pack("<Q", HUGE)]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400)
@given(mutations, st.integers(0, len(SOUND)), st.binary(max_size=40))
def test_damage_is_read_or_refused_and_nothing_else(
    path: Path, changes: list[tuple[int, bytes]], cut: int, tail: bytes
) -> None:
    raw = bytearray(SOUND)
    for at, piece in changes:
        raw[at : at + len(piece)] = piece
    read_or_refused(path, bytes(raw if cut % 4 else raw[:cut] + tail))


def read_or_refused(path: Path, raw: bytes) -> None:
    """And where it is read, each tensor lies inside the file, none on another."""
    path.write_bytes(raw)
    try:
        checkpoint = open_gguf(path)
        dict(checkpoint.metadata)
    except FlexInferError:
        return
    end = 0
    for tensor in sorted(checkpoint.tensors.values(), key=lambda t: t.offset_bytes):
        assert end <= tensor.offset_bytes
        end = tensor.offset_bytes + tensor.size_bytes
    assert end <= len(raw)


ONE_OF_3 = st.permutations(range(3)) | st.lists(st.integers(0, 3), min_size=3, max_size=3)
COUNTS = st.just([3, 3, 3]) | st.lists(st.sampled_from([3, 1, 2, 4]), min_size=3, max_size=3)


@settings(max_examples=80)
@given(ONE_OF_3, COUNTS, ONE_OF_3, st.integers(0, 2))
def test_shards_go_together_or_are_refused(
    path: Path, numbers: list[int], counts: list[int], names: list[int], given_shard: int
) -> None:
    """Three files, each with what it says of its number, of how many, and its tensor's name."""
    says = list(zip(numbers, counts, names, strict=True))
    paths = [path.with_name(f"m-{number:05}-of-00003.gguf") for number in (1, 2, 3)]
    for shard, (number, count, name) in zip(paths, says, strict=True):
        entries = [
            build.entry("split.no", 2, pack("<H", number)),
            build.entry("split.count", 2, pack("<H", count)),
            build.entry("split.tensors.count", build.INT32, pack("<i", 3)),
        ]
        shard.write_bytes(build.gguf(entries, [build.tensor(f"t{name}", [8])], bytes(32)))
    sound = [(number, count) for number, count, _ in says] == [(0, 3), (1, 3), (2, 3)]
    wanted = [f"t{name}" for name in names]
    alone = says[given_shard][1] == 1
    try:
        checkpoint = open_checkpoint(paths[given_shard])
    except FormatError as error:
        assert not alone and not (sound and len(set(names)) == 3)
        assert str(path.parent) in str(error) and error.hint
    else:
        assert alone or (sound and list(checkpoint.tensors) == wanted)
