"""The GGUF reader: sound files read as the `gguf` package reads them, the rest is refused."""

import errno
import os
import time
import tracemalloc
from pathlib import Path
from struct import pack

import gguf as reference
import numpy as np
import pytest

import gguf_bytes as build
from flexinfer.errors import FormatError, ReadError, UnsupportedError
from flexinfer.formats.checkpoint import TensorInfo, check_computable
from flexinfer.formats.gguf import open_gguf
from flexinfer.formats.gguf_values import Metadata
from flexinfer.formats.open import open_checkpoint
from flexinfer.formats.quants import BLOCK_TYPES

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
    start = time.process_time()
    open_gguf(gemma_path)
    assert time.process_time() - start < 0.4
    tracemalloc.start()
    checkpoint = open_gguf(gemma_path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(checkpoint.tensors) == 236
    assert held < 256 * 1024 and peak < 4 * 1024 * 1024


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
    start = time.process_time()
    with pytest.raises(FormatError, match="the value of k"):
        open_gguf(path)
    assert time.process_time() - start < 1


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
