"""Small vocabularies of both kinds, as GGUF metadata."""

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def byte_pairs(pre: str = "gpt-2", **extra: Any) -> dict[str, Any]:
    """The golden vocabulary of 256 bytes and 900 merges; after it <bos> <end> <tool> and [PAD].

    `extra` are further keys, or other values, without "tokenizer.ggml.".
    """
    splits = golden("splits.json")
    size = len(splits["tokens"])
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*splits["tokens"], "<bos>", "<|im_end|>", "<tool>", "[PAD]"],
        "token_type": [NORMAL] * size + [CONTROL, CONTROL, USER_DEFINED, UNUSED],
        "merges": splits["merges"],
        "bos_token_id": size,
    } | extra
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def sentence_pieces(**extra: Any) -> dict[str, Any]:
    """<unk> <s> </s>, the 256 bytes, some pieces, [INST] (control) and a user-defined one."""
    pieces = ["▁", "a", "b", "t", "h", "e", "▁a", "th", "the", "▁the", "é", "▁é"]
    special = ["[INST]", "\n\n", "[PAD]"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces, *special]
    ordinary = len(pieces)
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-10.0] * 6 + [-float(i) for i in range(6)] + [0.0] * 3,
        "token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * ordinary
        + [CONTROL, USER_DEFINED, UNUSED],
    } | extra
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
