"""Random llama models as GGUF files, made on the spot: every block type, no library but ours.

Values are sized so that activations stay near 1 through all layers. The files have no vocabulary:
token ids go in and come out.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from struct import pack
from typing import Any, BinaryIO

import numpy as np
import torch

from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.ops.torch_quants import Unpacker

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
UINT32, FLOAT32, STRING = 4, 6, 8  # of GGUF's values
ALIGNMENT = 32
PART_BYTES = 32 << 20  # written at a time
TYPES = {kind.name: kind for kind in BLOCK_TYPES.values() if kind.has_kernel}

# Where a block's float16 scales lie, relative to each other so that the values' mean is about 0.
_SCALES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1.0},
    "Q4_1": {0: 1.0, 2: -7.5},
    "Q5_0": {0: 1.0},
    "Q5_1": {0: 1.0, 2: -15.5},
    "Q8_0": {0: 1.0},
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}
_VARIATION = np.linspace(0.5, 1.5, 256, dtype=np.float32)  # of scales, by a byte of the block


@dataclass(frozen=True, slots=True)
class Shape:
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    vocab_size: int
    layers: int
    context_tokens: int = 4096

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """(name, rows, columns) of each, as in a file."""
        keys = self.dim // self.heads * self.kv_heads
        yield "token_embd", self.vocab_size, self.dim
        for layer in range(self.layers):
            for role, rows, columns in (
                ("attn_q", self.dim, self.dim),
                ("attn_k", keys, self.dim),
                ("attn_v", keys, self.dim),
                ("attn_output", self.dim, self.dim),
                ("ffn_gate", self.ffn_dim, self.dim),
                ("ffn_up", self.ffn_dim, self.dim),
                ("ffn_down", self.dim, self.ffn_dim),
            ):
                yield f"blk.{layer}.{role}", rows, columns
        yield "output", self.vocab_size, self.dim

    def norms(self) -> Iterator[str]:
        for layer in range(self.layers):
            yield from (f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm")
        yield "output_norm"


SHAPES = {
    "tiny": Shape(256, 512, 4, 2, 330, 3),  # a vocabulary that fills no group of 16 rows
    "small": Shape(512, 1536, 8, 4, 1000, 8),
    "llama-2-7b": Shape(4096, 11008, 32, 32, 32000, 32),
}


def shape_of(name: str, layers: int | None) -> Shape:
    return replace(SHAPES[name], layers=layers or SHAPES[name].layers)


def write_model(path: Path, shape: Shape, kind: BlockType) -> None:
    """Matrices of `kind`, norms in F32. Takes about a second for each GB, or what the disk does."""
    matrices, norms = list(shape.matrices()), list(shape.norms())
    table, offset = b"", 0
    for name, rows, columns in matrices:
        table += _entry(name, (columns, rows), kind.ggml_id, offset)
        offset += _padded(rows * kind.row_bytes(columns))
    for name in norms:
        table += _entry(name, (shape.dim,), 0, offset)
        offset += _padded(4 * shape.dim)
    keys = _keys(shape)
    header = b"GGUF" + pack("<IQQ", 3, len(matrices) + len(norms), len(keys)) + b"".join(keys)
    with path.open("wb") as file:
        _write(file, header + table)
        for name, rows, columns in matrices:
            rng = _generator(name)
            step = max(1, PART_BYTES // kind.row_bytes(columns))
            for first in range(0, rows, step):
                count = min(step, rows - first)
                file.write(random_rows(rng, kind, count, columns, columns**-0.5).data)
            file.write(bytes(_padded(file.tell()) - file.tell()))
        for name in norms:
            _write(file, _generator(name).normal(1, 0.2, shape.dim).astype(np.float32).tobytes())


def random_rows(
    rng: np.random.Generator, kind: BlockType, rows: int, columns: int, deviation: float
) -> Bytes:
    """uint8 [rows, row bytes] whose values have about this standard deviation and a mean of 0."""
    if kind.block_values == 1:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)
        if kind.name == "BF16":
            return np.ascontiguousarray((values.view(np.uint32) >> 16).astype("<u2")).view(np.uint8)
        return values.astype(np.float16 if kind.name == "F16" else np.float32).view(np.uint8)
    blocks = _random_blocks(rng, kind, rows * columns // kind.block_values)
    _set_scales(kind, blocks, deviation / _unit_deviation(kind))
    return blocks.reshape(rows, -1)


def _random_blocks(rng: np.random.Generator, kind: BlockType, count: int) -> Bytes:
    data = np.frombuffer(bytearray(rng.bytes(count * kind.block_bytes)), np.uint8)
    return data.reshape(count, kind.block_bytes)


def _set_scales(kind: BlockType, blocks: Bytes, scale: float) -> None:
    if kind.name == "MXFP4":  # an exponent: 2^(e - 128)
        blocks[:, 0] = 127 + round(float(np.log2(scale))) + (blocks[:, 1] & 1)
        return
    varied = _VARIATION[blocks[:, -1]] if blocks.shape[1] > 4 else np.float32(1)
    for offset, factor in _SCALES[kind.name].items():
        halves = (varied * np.float32(scale * factor)).astype("<f2")
        blocks[:, offset : offset + 2] = halves[:, None].view(np.uint8)


def _unit_deviation(kind: BlockType) -> float:
    """Of values of random blocks whose scale is 1."""
    blocks = _random_blocks(np.random.default_rng(0), kind, 64)
    _set_scales(kind, blocks, 1.0)
    unpacker = Unpacker(torch.device("cpu"))
    values = unpacker.rows(
        kind.ggml_id, torch.from_numpy(blocks), 64, kind.block_values, interleaved=False
    )
    return float(values.square().mean().sqrt())


def _keys(shape: Shape) -> list[bytes]:
    numbers = {
        "context_length": shape.context_tokens,
        "embedding_length": shape.dim,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn_dim,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "vocab_size": shape.vocab_size,
    }
    return [
        _text("general.architecture") + pack("<I", STRING) + _text("llama"),
        _text("tokenizer.ggml.model") + pack("<I", STRING) + _text("none"),
        _text("llama.attention.layer_norm_rms_epsilon") + pack("<If", FLOAT32, 1e-5),
        *(_text(f"llama.{key}") + pack("<II", UINT32, n) for key, n in numbers.items()),
    ]


def _text(value: str) -> bytes:
    raw = value.encode()
    return pack("<Q", len(raw)) + raw


def _entry(name: str, shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return _text(f"{name}.weight") + pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


def _padded(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data + bytes(_padded(len(data)) - len(data)))


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))
