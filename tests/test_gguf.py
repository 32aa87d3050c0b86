"""The GGUF reader: sound files read as the `gguf` package reads them, the rest is refused."""

import errno
import os
import time
import tracemalloc
from pathlib import Path
from struct import pack

import gguf as reference
import gguf_bytes as build
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexinfer.errors import FlexInferError, FormatError, ReadError, UnsupportedError
from flexinfer.formats.checkpoint import TensorInfo, check_computable
from flexinfer.formats.gguf import open_gguf
from flexinfer.formats.gguf_values import Metadata
from flexinfer.formats.open import open_checkpoint
from flexinfer.formats.quants import BLOCK_TYPES

HUGE = (1 << 63) - 1
ALIGNMENT = build.entry("general.alignment", build.UINT32, pack("<I", 64))
SOUND = build.gguf(
    [
        build.entry("general.architecture", build.STRING, build.text("llama")),
        build.entry("a.flag", build.BOOL, b"\1"),
        build.entry("a.number", build.FLOAT32, pack("<f", 0.5)),
        build.strings("a.words", ["uno", "", "trés"]),
        build.entry("a.numbers", build.ARRAY, pack("<IQ3i", build.INT32, 3, 1, -2, 3)),
    ],
    [build.tensor("one", [32, 3]), build.tensor("two", [64], 384, 2)],
    bytes(384 + 36),
)


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return path


def test_block_types_are_those_of_the_gguf_package() -> None:
    theirs = {
        t.name: (int(t), *size)
        for t, size in reference.GGML_QUANT_SIZES.items()
        if t.name not in ("Q8_1", "Q8_K")  # of activations, never in a file
    }
    ours = {t.name: (t.ggml_id, t.block_values, t.block_bytes) for t in BLOCK_TYPES.values()}
    assert ours == theirs


@pytest.mark.parametrize("version", [2, 3])
def test_reads_values_and_tensors(tmp_path: Path, version: int) -> None:
    path = write(tmp_path, SOUND[:4] + pack("<I", version) + SOUND[8:])
    checkpoint = open_checkpoint(str(path))
    assert dict(checkpoint.metadata) == {
        "general.architecture": "llama",
        "a.flag": True,
        "a.number": 0.5,
        "a.words": ["uno", "", "trés"],
        "a.numbers": checkpoint.metadata["a.numbers"],
    }
    assert list(checkpoint.metadata["a.numbers"]) == [1, -2, 3]
    assert "a.words" in checkpoint.metadata and "words" not in checkpoint.metadata
    one, two = checkpoint.tensors.values()
    start = len(SOUND) - 420
    assert (one.name, one.shape, one.offset_bytes, one.size_bytes) == ("one", (3, 32), start, 384)
    assert (one.rows, one.columns, one.row_bytes) == (3, 32, 128)
    assert (two.shape, two.block_type.name, two.size_bytes) == ((64,), "Q4_0", 36)


def test_alignment_of_64_moves_the_data(tmp_path: Path) -> None:
    raw = build.gguf([ALIGNMENT], [build.tensor("t", [16])], bytes(64), alignment=64)
    checkpoint = open_gguf(write(tmp_path, raw))
    assert checkpoint.alignment == 64
    assert checkpoint.tensors["t"].offset_bytes == len(raw) - 64 == 128


def test_long_strings_are_read_when_asked_for(tmp_path: Path) -> None:
    template = "{{ x }}é" * 20_000
    raw = build.gguf([build.entry("tokenizer.chat_template", build.STRING, build.text(template))])
    assert open_gguf(write(tmp_path, raw)).metadata["tokenizer.chat_template"] == template


def test_string_arrays_longer_than_a_piece(tmp_path: Path) -> None:
    words = ["x" * (n * 7919 % 5000) for n in range(1500)] + ["y" * 3_000_000, "", "z"]
    metadata = open_gguf(write(tmp_path, build.gguf([build.strings("w", words)]))).metadata
    assert metadata["w"] == words
    assert isinstance(metadata, Metadata)


def test_agrees_with_the_gguf_package_on_a_real_model(smollm_path: Path) -> None:
    checkpoint = open_gguf(smollm_path)
    theirs = reference.GGUFReader(smollm_path)
    assert [
        (t.name, t.shape, t.block_type.name, t.offset_bytes, t.size_bytes)
        for t in checkpoint.tensors.values()
    ] == [
        (t.name, tuple(map(int, t.shape[::-1])), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(checkpoint.metadata) == keys
    for key in keys:
        ours, expected = checkpoint.metadata[key], theirs.fields[key].contents()
        assert (list(ours) if isinstance(expected, list) else ours) == expected, key


def test_a_vocabulary_of_262144_is_fast_and_takes_no_memory(gemma_path: Path) -> None:
    start = time.perf_counter()
    open_gguf(gemma_path)
    assert time.perf_counter() - start < 0.4
    tracemalloc.start()
    checkpoint = open_gguf(gemma_path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(checkpoint.tensors) == 236
    assert held < 256 * 1024 and peak < 4 * 1024 * 1024


def one_tensor(shape: list[int], offset: int = 0, type_id: int = 0, size: int = 4096) -> bytes:
    return build.gguf([], [build.tensor("t", shape, offset, type_id)], bytes(size))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "safetensors": (pack("<Q", 200) + b'{"a":{"dtype":"F32"}}' + bytes(200), "is a safetensors"),
    "pickle": (b"PK\x03\x04" + bytes(100), "is a zip archive or a PyTorch"),
    "old format": (b"tjgg" + bytes(100), "older than GGUF"),
    "json": (b'{"architectures": ["Llama"]}', "is JSON"),
    "wrong magic": (b"GGUX" + SOUND[4:], "starts with b'GGUX'"),
    "version 1": (build.gguf(version=1), "GGUF version 1;"),
    "version 4": (build.gguf(version=4), "GGUF version 4;"),
    "big-endian": (b"GGUF" + pack(">IQQ", 3, 0, 0), "big-endian"),
    "only the magic": (b"GGUF", "the version would end at byte 8, the file has 4 bytes"),
    "tensor count": (build.gguf(tensor_count=HUGE), f"announces {HUGE} tensors"),
    "key count": (build.gguf(entry_count=HUGE), f"announces {HUGE} keys"),
    "cut header": (SOUND[:150], "the file has 150 bytes"),
    "key length": (build.gguf([pack("<Q", HUGE) + bytes(99)]), f"key 0 has {HUGE} bytes"),
    "key not utf-8": (
        build.gguf([build.entry(b"a\xff", build.BOOL, b"\1")]),
        "key 0 is not valid UTF-8",
    ),
    "key twice": (build.gguf([build.entry("k", build.BOOL, b"\1")] * 2), "'k' occurs twice"),
    "value type": (build.gguf([build.entry("k", 13, bytes(8))]), "has value type 13"),
    "boolean": (build.gguf([build.entry("k", build.BOOL, b"\2")]), "boolean of value 2"),
    "string length": (
        build.gguf([build.entry("k", build.STRING, pack("<Q", HUGE))]),
        f"the value of k would end at byte {HUGE + 45}",
    ),
    "string not utf-8": (
        build.gguf([build.entry("k", build.STRING, build.text(b"\xc3"))]),
        "the value of k is not valid UTF-8",
    ),
    "array length": (
        build.gguf([build.entry("n", build.ARRAY, pack("<IQ", build.UINT64, HUGE))]),
        "the value of n would end at byte",
    ),
    "string array length": (
        build.gguf([build.entry("s", build.ARRAY, pack("<IQ", build.STRING, HUGE))]),
        "the value of s would end at byte",
    ),
    "string in an array": (
        build.gguf([build.entry("i", build.ARRAY, pack("<IQQ", build.STRING, 1, HUGE))]),
        "the value of i would end at byte",
    ),
    "array type": (
        build.gguf([build.entry("k", build.ARRAY, pack("<IQ", 99, 1))]),
        "has element type 99",
    ),
    "nested array": (
        build.gguf([build.entry("k", build.ARRAY, pack("<IQIQ", build.ARRAY, 1, 0, 1) + b"x")]),
        "k is an array of arrays",
    ),
    "alignment 0": (
        build.gguf([build.entry("general.alignment", build.UINT32, pack("<I", 0))]),
        "general.alignment is 0, not",
    ),
    "alignment 3": (
        build.gguf([build.entry("general.alignment", build.UINT32, pack("<I", 3))]),
        "general.alignment is 3, not",
    ),
    "alignment type": (
        build.gguf([build.entry("general.alignment", build.STRING, build.text("32"))]),
        "general.alignment has value type 8",
    ),
    "one of several": (
        build.gguf([build.entry("split.count", 2, pack("<H", 3))]),
        "of 3 (split.count)",
    ),
    "tensor name not utf-8": (
        build.gguf([], [build.tensor(b"\xff", [1])]),
        "tensor 0 is not valid",
    ),
    "tensor twice": (
        build.gguf([], [build.tensor("t", [8]), build.tensor("t", [8], 32)], bytes(64)),
        "the tensor t occurs twice",
    ),
    "no dimensions": (build.gguf([], [build.tensor("t", [])], bytes(64)), "has 0 dimensions"),
    "5 dimensions": (one_tensor([1] * 5), "has 5 dimensions"),
    "dimension 0": (one_tensor([32, 0]), "impossible shape [0, 32]"),
    "dimension 2^64-1": (one_tensor([2 * HUGE + 1]), "impossible shape [18446744073709551615]"),
    "product": (one_tensor([1 << 32] * 3), "impossible shape [4294967296, 4294967296, "),
    "beyond the file": (one_tensor([1 << 40]), f"the tensor t would end at byte {(1 << 42) + 64}"),
    "offset": (one_tensor([8], HUGE - 31), "the tensor t would end at byte 92233720368547758"),
    "misaligned": (one_tensor([8], 8), "offset 8, no multiple of the alignment 32"),
    "type id": (one_tensor([32], 0, 77), "the tensor t has the unknown type id 77"),
    "part of a block": (one_tensor([48, 2], 0, 2), "rows of 48 values, not a multiple of the 32"),
    "overlap": (
        build.gguf([], [build.tensor("a", [16]), build.tensor("b", [8], 32)], bytes(96)),
        "a and b overlap",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refuses(tmp_path: Path, case: str) -> None:
    raw, message = HOSTILE[case]
    path = write(tmp_path, raw)
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        open_checkpoint(path)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.hint
    assert seconds < 1 and peak < 4 * 1024 * 1024


def test_every_refusal_has_a_message_of_its_own() -> None:
    messages = [message for _, message in HOSTILE.values()]
    assert len(set(messages)) == len(messages)


def test_a_cut_file_names_the_tensor_its_end_and_the_size(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is cut: the tensor two ") as caught:
        open_gguf(write(tmp_path, SOUND[:-1]))
    assert f"end at byte {len(SOUND)}, the file has {len(SOUND) - 1} bytes" in str(caught.value)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    for size in (*range(len(SOUND) - 430), *range(len(SOUND) - 430, len(SOUND), 43)):
        with pytest.raises(FormatError):
            open_gguf(write(tmp_path, SOUND[:size]))


@pytest.mark.parametrize("kind", [build.STRING, build.UINT8])
def test_a_vast_sparse_file_takes_no_time(tmp_path: Path, kind: int) -> None:
    count = 1 << 34
    path = write(tmp_path, build.gguf([build.entry("k", build.ARRAY, pack("<IQ", kind, count))]))
    with path.open("r+b") as file:
        file.truncate(1 << 38)
    start = time.perf_counter()
    with pytest.raises(FormatError, match="the value of k"):
        open_gguf(path)
    assert time.perf_counter() - start < 1


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is a directory"):
        open_checkpoint(tmp_path)
    with pytest.raises(FormatError, match="no such file"):
        open_checkpoint(tmp_path / "missing.gguf")
    with pytest.raises(FormatError, match="not a regular file"):
        open_checkpoint("/dev/null")
    with pytest.raises(FormatError, match="cannot be read: embedded null byte"):
        open_checkpoint("a\0b.gguf")
    with pytest.raises(FormatError, match="cannot be read: Not a directory"):
        open_checkpoint(write(tmp_path, SOUND) / "model.gguf")


def test_an_error_of_the_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    path = write(tmp_path, SOUND)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(FormatError, match="cannot be read: Input/output error"):
        open_checkpoint(path)


def test_a_file_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path, SOUND)
    metadata = open_gguf(path).metadata
    path.write_bytes(SOUND[:100])
    with pytest.raises(ReadError, match="no longer there"):
        metadata["a.words"]
    path.write_bytes(SOUND.replace(build.text("uno"), build.text("u") + b"no"))
    with pytest.raises(ReadError, match="changed since"):
        metadata["a.words"]
    path.unlink()
    with pytest.raises(ReadError, match="No such file"):
        metadata["a.words"]


def test_types_without_a_kernel_are_named_with_their_tensors() -> None:
    types = {t.name: t for t in BLOCK_TYPES.values()}

    def info(name: str, shape: tuple[int, ...], block_type: str) -> TensorInfo:
        return TensorInfo(name, shape, types[block_type], Path("m.gguf"), 0, 0)

    sound = [info("a", (4, 256), "Q4_K"), info("n", (8,), "F16"), info("b", (8,), "BF16")]
    check_computable(sound)
    wanting = [info("x", (4, 256), "IQ2_S"), info("y", (4, 256), "IQ2_S"), info("v", (8,), "I8")]
    with pytest.raises(UnsupportedError, match="IQ2_S of x and 1 more; I8 of v") as caught:
        check_computable(sound + wanting)
    assert caught.value.hint and "Q4_K" in caught.value.hint


mutations = st.lists(
    st.tuples(
        st.integers(0, len(SOUND) - 1),
        st.binary(min_size=1, max_size=9) | st.sampled_from([pack("<q", -1), pack("<Q", HUGE)]),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(mutations, st.integers(0, len(SOUND)), st.binary(max_size=40))
def test_damage_is_read_or_refused_and_nothing_else(
    tmp_path: Path, changes: list[tuple[int, bytes]], cut: int, tail: bytes
) -> None:
    raw = bytearray(SOUND)
    for at, piece in changes:
        raw[at : at + len(piece)] = piece
    path = write(tmp_path, bytes(raw if cut % 4 else raw[:cut] + tail))
    try:
        checkpoint = open_gguf(path)
        dict(checkpoint.metadata)
    except FlexInferError:
        return
    ends = [t.offset_bytes + t.size_bytes for t in checkpoint.tensors.values()]
    assert max(ends, default=0) <= path.stat().st_size


def test_a_file_of_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "mödel of mine.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    numbers = {
        "u8": 200, "i8": -100, "u16": 60_000, "i16": -30_000, "u32": 4_000_000_000,
        "i32": -2_000_000_000, "f32": 0.25, "bool": False, "str": "é", "u64": 1 << 63,
        "i64": -(1 << 62), "f64": 0.1,
    }  # fmt: skip
    for kind, value in numbers.items():
        name = {"u": "UINT", "i": "INT", "f": "FLOAT"}.get(kind[0], "") + kind[1:]
        named = {"bool": "BOOL", "str": "STRING"}.get(kind, name)
        writer.add_key_value(f"x.{kind}", value, reference.GGUFValueType[named])
    writer.add_array("x.flags", [True, False])
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("w", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_gguf(path)
    assert checkpoint.alignment == 128
    assert {kind: checkpoint.metadata[f"x.{kind}"] for kind in numbers} == numbers
    assert checkpoint.metadata["x.flags"] == [True, False]
    tensor = checkpoint.tensors["w"]
    raw = path.read_bytes()[tensor.offset_bytes :][: tensor.size_bytes]
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(tensor.shape), values)
