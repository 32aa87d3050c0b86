"""A whole llama of one layer, written byte by byte: any key and any tensor may be another."""

from collections.abc import Mapping
from math import prod
from struct import pack

from flexinfer.formats.quants import BLOCK_TYPES
from gguf_bytes import ARRAY, FLOAT32, INT32, STRING, UINT32, entry, gguf, strings, tensor, text

DIM, FFN, VOCAB = 32, 256, 48
TOKENS = ["<unk>", "<s>", "</s>", *map(chr, range(65, 65 + VOCAB - 3))]
# Innermost first, as in the file.
SHAPES: dict[str, tuple[int, ...]] = {
    **{f"blk.0.attn_{name}.weight": (DIM, DIM) for name in ("q", "k", "v", "output")},
    **{f"blk.0.ffn_{name}.weight": (DIM, FFN) for name in ("gate", "up")},
    "blk.0.ffn_down.weight": (FFN, DIM),  # the one whose rows fill the largest blocks
    **{f"{name}_norm.weight": (DIM,) for name in ("blk.0.attn", "blk.0.ffn", "output")},
    "token_embd.weight": (DIM, VOCAB),
}


def number(key: str, value: int) -> bytes:
    return entry(key, UINT32, pack("<I", value))


def numbers(key: str, values: list[int]) -> bytes:
    return entry(key, ARRAY, pack(f"<IQ{len(values)}i", INT32, len(values), *values))


def floats(key: str, values: list[float]) -> bytes:
    return entry(key, ARRAY, pack(f"<IQ{len(values)}f", FLOAT32, len(values), *values))


def _keys() -> dict[str, bytes]:
    shape = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": DIM,
        "feed_forward_length": FFN,
        "attention.head_count": 1,
    }
    epsilon, llama = "llama.attention.layer_norm_rms_epsilon", "general.architecture"
    keys = {llama: entry(llama, STRING, text("llama"))}
    keys |= {f"llama.{key}": number(f"llama.{key}", value) for key, value in shape.items()}
    keys[epsilon] = entry(epsilon, FLOAT32, pack("<f", 1e-5))
    tokenizer = {
        "model": entry("tokenizer.ggml.model", STRING, text("llama")),
        "tokens": strings("tokenizer.ggml.tokens", TOKENS),
        "scores": floats("tokenizer.ggml.scores", [0.0] * VOCAB),
        "token_type": numbers("tokenizer.ggml.token_type", [2, 3, 3] + [1] * (VOCAB - 3)),
    }
    return keys | {f"tokenizer.ggml.{name}": raw for name, raw in tokenizer.items()}


def tiny_llama(
    changes: Mapping[str, bytes | None] | None = None, types: Mapping[str, int] | None = None
) -> bytes:
    """The file: `changes` are other entries of keys (None: none), `types` other type ids than F32
    of tensors. All weights are 0.
    """
    entries = [raw for raw in (_keys() | dict(changes or {})).values() if raw is not None]
    tensors, at = [], 0
    for name, shape in SHAPES.items():
        type_id = (types or {}).get(name, 0)
        tensors.append(tensor(name, shape, at, type_id))
        at += -(-BLOCK_TYPES[type_id].row_bytes(shape[0]) * prod(shape[1:]) // 32) * 32
    return gguf(entries, tensors, bytes(at))
