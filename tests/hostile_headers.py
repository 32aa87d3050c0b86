"""Headers as no sound file has them: a table of bytes, and what is said of each.

Kinds seen in the field: files that are something else, cut files, counts and lengths near 2^63 or
negative, products that wrap around, tensors on top of each other, keys of another type.
"""

from struct import pack

import gguf_bytes as build
from tiny_llama import TOKENS, VOCAB, floats, number, numbers, tiny_llama

HUGE = (1 << 63) - 1
MINUS_1 = (1 << 64) - 1
ARCHITECTURE = build.entry("general.architecture", build.STRING, build.text("llama"))
ALIGNMENT = "general.alignment"
TOKENIZER = "tokenizer.ggml."


def aligned(value: int) -> bytes:
    return build.entry(ALIGNMENT, build.UINT32, pack("<I", value))


def one_tensor(shape: list[int], offset: int = 0, type_id: int = 0, size: int = 4096) -> bytes:
    return build.gguf([], [build.tensor("t", shape, offset, type_id)], bytes(size))


def two_tensors(first: int, second: int) -> bytes:
    """Of 64 bytes each, at these offsets."""
    tensors = [build.tensor("a", [16], first), build.tensor("b", [16], second)]
    return build.gguf([], tensors, bytes(256))


def with_key(key: str, kind: int, value: bytes) -> bytes:
    """A whole model but for one key."""
    return tiny_llama({key: build.entry(key, kind, value)})


def with_text(key: str, value: str) -> bytes:
    return with_key(key, build.STRING, build.text(value))


def deep(levels: int) -> bytes:
    """Arrays of one array each."""
    return pack("<IQ", build.ARRAY, 1) * levels + pack("<IQB", build.UINT8, 1, 0)


FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "safetensors": (pack("<Q", 200) + b'{"a":{"dtype":"F32"}}' + bytes(200), "is a safetensors"),
    "pickle": (b"PK\x03\x04" + bytes(100), "is a zip archive or a PyTorch"),
    "old format": (b"tjgg" + bytes(100), "older than GGUF"),
    "json": (b'{"architectures": ["Llama"]}', "is JSON"),
    "wrong magic": (b"GGUX" + bytes(100), "starts with b'GGUX'"),
    "zeros": (bytes(4096), "starts with b'\\x00\\x00\\x00\\x00'"),
    "version 0": (build.gguf(version=0), "GGUF version 0;"),
    "version 1": (build.gguf(version=1), "GGUF version 1;"),
    "version 4": (build.gguf(version=4), "GGUF version 4;"),
    "version -1": (build.gguf(version=(1 << 32) - 1), "GGUF version 4294967295;"),
    "big-endian": (b"GGUF" + pack(">IQQ", 3, 0, 0), "big-endian"),
    "only the magic": (b"GGUF", "the version would end at byte 8, the file has 4 bytes"),
    "no keys": (build.gguf(), "general.architecture is missing"),
}
COUNTS: dict[str, tuple[bytes, str]] = {
    "tensors": (build.gguf(tensor_count=HUGE), f"announces {HUGE} tensors"),
    "tensors -1": (build.gguf(tensor_count=MINUS_1), f"announces {MINUS_1} tensors"),
    "tensors 2^32": (build.gguf(tensor_count=1 << 32), "announces 4294967296 tensors"),
    "keys": (build.gguf(entry_count=HUGE), f"announces {HUGE} keys"),
    "keys -1": (build.gguf(entry_count=MINUS_1), f"announces {MINUS_1} keys"),
    "one key more": (
        build.gguf([ARCHITECTURE], [build.tensor("t", [8])], bytes(64), entry_count=2),
        "the tensor  has 0 dimensions",  # what follows is taken for a key
    ),
    "key length": (build.gguf([pack("<Q", HUGE) + bytes(99)]), f"key 0 has {HUGE} bytes"),
    "key length -1": (build.gguf([pack("<Q", MINUS_1) + bytes(99)]), f"key 0 has {MINUS_1} "),
    "string length": (
        build.gguf([build.entry("k", build.STRING, pack("<Q", HUGE))]),
        f"the value of k would end at byte {HUGE + 45}",
    ),
    "string length -1": (
        build.gguf([build.entry("k", build.STRING, pack("<Q", MINUS_1))]),
        f"the value of k would end at byte {MINUS_1 + 45}",
    ),
    "array length": (
        build.gguf([build.entry("n", build.ARRAY, pack("<IQ", build.UINT64, HUGE))]),
        "the value of n would end at byte",
    ),
    "array that wraps": (  # 2^61 values of 8 bytes are 0 in 64 bits
        build.gguf([build.entry("w", build.ARRAY, pack("<IQ", build.UINT64, 1 << 61))]),
        "the value of w would end at byte",
    ),
    "strings": (
        build.gguf([build.entry("s", build.ARRAY, pack("<IQ", build.STRING, HUGE))]),
        "the value of s would end at byte",
    ),
    "string in an array": (
        build.gguf([build.entry("i", build.ARRAY, pack("<IQQ", build.STRING, 1, HUGE))]),
        "the value of i would end at byte",
    ),
    "name length": (build.gguf([], [pack("<Q", 1 << 16) + bytes(1 << 17)]), "has 65536 bytes"),
}
KEYS: dict[str, tuple[bytes, str]] = {
    "not utf-8": (
        build.gguf([build.entry(b"a\xff", build.BOOL, b"\1")]),
        "key 0 is not valid UTF-8",
    ),
    "twice": (build.gguf([build.entry("k", build.BOOL, b"\1")] * 2), "'k' occurs twice"),
    "value type": (build.gguf([build.entry("k", 13, bytes(8))]), "has value type 13"),
    "boolean": (build.gguf([build.entry("k", build.BOOL, b"\2")]), "boolean of value 2"),
    "string not utf-8": (
        build.gguf([build.entry("k", build.STRING, build.text(b"\xc3"))]),
        "the value of k is not valid UTF-8",
    ),
    "element type": (
        build.gguf([build.entry("k", build.ARRAY, pack("<IQ", 99, 1))]),
        "has element type 99",
    ),
    "nested": (build.gguf([build.entry("k", build.ARRAY, deep(1))]), "k is an array of arrays"),
    "deeply nested": (
        build.gguf([build.entry("d", build.ARRAY, deep(10_000))]),
        "d is an array of arrays",
    ),
    "alignment 0": (build.gguf([aligned(0)]), "general.alignment is 0, not"),
    "alignment 3": (build.gguf([aligned(3)]), "general.alignment is 3, not"),
    "alignment -1": (build.gguf([aligned((1 << 32) - 1)]), "general.alignment is 4294967295, not"),
    "alignment 2 GiB": (
        build.gguf([aligned(1 << 31)], [build.tensor("t", [8])], bytes(64)),
        f"the tensor t would end at byte {(1 << 31) + 32}",
    ),
    "alignment a string": (with_text(ALIGNMENT, "32"), "general.alignment has value type 8"),
    "alignment of 64 bits": (
        with_key(ALIGNMENT, build.UINT64, pack("<Q", 32)),
        "general.alignment has value type 10",
    ),
    "alignment an array": (
        build.gguf([numbers(ALIGNMENT, [32])]),
        "general.alignment has value type 9",
    ),
    "shards": (with_key("split.count", 2, pack("<H", 3)), "of 3 (split.count)"),
    "shards 2^64-1": (
        with_key("split.count", build.UINT64, pack("<Q", MINUS_1)),
        f"of {MINUS_1} (split.count)",
    ),
    "layers": (tiny_llama({"llama.block_count": number("llama.block_count", 1 << 30)}), "only 11"),
    "layers -1": (
        with_key("llama.block_count", build.INT32, pack("<i", -1)),
        "llama.block_count is -1, not",
    ),
    "layers a text": (with_text("llama.block_count", "1"), "llama.block_count is '1', not"),
    "context 2^64-1": (
        with_key("llama.context_length", build.UINT64, pack("<Q", MINUS_1)),
        f"llama.context_length is {MINUS_1}, not",
    ),
    "epsilon": (
        with_key("llama.attention.layer_norm_rms_epsilon", build.FLOAT32, pack("<f", 1e-45)),
        "epsilon is 1.401298464324817e-45, not",
    ),
    "rope factor": (
        with_key("llama.rope.scaling.factor", 12, pack("<d", 1e300)),
        "llama.rope.scaling.factor is 1e+300, not",
    ),
}
TENSORS: dict[str, tuple[bytes, str]] = {
    "name not utf-8": (build.gguf([], [build.tensor(b"\xff", [1])]), "tensor 0 is not valid"),
    "twice": (
        build.gguf([], [build.tensor("t", [8]), build.tensor("t", [8], 32)], bytes(64)),
        "the tensor t occurs twice",
    ),
    "no dimensions": (build.gguf([], [build.tensor("t", [])], bytes(64)), "has 0 dimensions"),
    "5 dimensions": (one_tensor([1] * 5), "has 5 dimensions"),
    "2^32-1 dimensions": (
        build.gguf([], [build.text("t") + pack("<I", (1 << 32) - 1) + bytes(64)]),
        "has 4294967295 dimensions",
    ),
    "dimension 0": (one_tensor([32, 0]), "impossible shape [0, 32]"),
    "dimension 0 between": (one_tensor([32, 0, 1 << 40]), "shape [1099511627776, 0, 32]"),
    "dimension -1": (one_tensor([MINUS_1]), "impossible shape [18446744073709551615]"),
    "product": (one_tensor([1 << 32] * 3), "impossible shape [4294967296, 4294967296, "),
    "product that wraps": (one_tensor([1 << 33, 1 << 31]), "shape [2147483648, 8589934592]"),
    "size that wraps": (one_tensor([1 << 62]), f"t would end at byte {(1 << 64) + 64}"),
    "beyond the file": (one_tensor([1 << 40]), f"the tensor t would end at byte {(1 << 42) + 64}"),
    "offset": (one_tensor([8], HUGE - 31), "the tensor t would end at byte 92233720368547758"),
    "offset -64": (one_tensor([8], MINUS_1 - 63), f"t would end at byte {(1 << 64) + 32}"),
    "offset at the end": (one_tensor([8], 4096), "t would end at byte 4192, the file has 4160"),
    "misaligned": (one_tensor([8], 8), "offset 8, no multiple of the alignment 32"),
    "misaligned by its own": (
        build.gguf([aligned(64)], [build.tensor("t", [8], 32)], bytes(96)),
        "offset 32, no multiple of the alignment 64",
    ),
    "type id": (one_tensor([32], 0, 77), "the tensor t has the unknown type id 77"),
    "type id -1": (one_tensor([32], 0, (1 << 32) - 1), "the unknown type id 4294967295"),
    "type of activations": (one_tensor([32], 0, 9), "the unknown type id 9"),
    "type taken back": (one_tensor([32], 0, 31), "t has the type Q4_0_4_4, which was taken back"),
    "part of a block": (one_tensor([48, 2], 0, 2), "rows of 48 values, not a multiple of the 32"),
    "overlap": (two_tensors(0, 32), "a and b overlap: the first ends at byte 160"),
    "same place": (two_tensors(64, 64), "a and b overlap: the first ends at byte 224"),
    "back to front": (two_tensors(32, 0), "b and a overlap"),
    "type without a kernel": (
        tiny_llama(types={"blk.0.ffn_down.weight": 19}),
        "IQ1_S of blk.0.ffn_down.weight",
    ),
}
TOKENIZERS: dict[str, tuple[bytes, str]] = {
    "no such kind": (with_text(f"{TOKENIZER}model", "magic"), "the tokenizer 'magic'"),
    "kind a number": (tiny_llama({f"{TOKENIZER}model": number(f"{TOKENIZER}model", 7)}), "is 7,"),
    "no tokens": (tiny_llama({f"{TOKENIZER}tokens": None}), "tokenizer.ggml.tokens is absent"),
    "tokens of none": (
        tiny_llama({f"{TOKENIZER}tokens": build.strings(f"{TOKENIZER}tokens", [])}),
        "tokenizer.ggml.tokens is empty",
    ),
    "tokens that are numbers": (
        tiny_llama({f"{TOKENIZER}tokens": numbers(f"{TOKENIZER}tokens", [1] * VOCAB)}),
        "tokenizer.ggml.tokens is an array of 48, not an array of texts",
    ),
    "a token not utf-8": (
        tiny_llama({f"{TOKENIZER}tokens": build.strings(f"{TOKENIZER}tokens", [b"\xff"])}),
        "the value of tokenizer.ggml.tokens is not valid UTF-8",
    ),
    "scores of another length": (
        tiny_llama({f"{TOKENIZER}scores": floats(f"{TOKENIZER}scores", [0.0] * 47)}),
        "tokenizer.ggml.scores has 47 entries for 48 tokens",
    ),
    "scores that are none": (
        tiny_llama({f"{TOKENIZER}scores": floats(f"{TOKENIZER}scores", [float("nan")] * VOCAB)}),
        "tokenizer.ggml.scores has values that are no scores",
    ),
    "scores a text": (with_text(f"{TOKENIZER}scores", "0"), "tokenizer.ggml.scores is '0', not"),
    "types of another length": (
        tiny_llama({f"{TOKENIZER}token_type": numbers(f"{TOKENIZER}token_type", [1])}),
        "tokenizer.ggml.token_type has 1 entries for 48 tokens",
    ),
    "types that are texts": (
        tiny_llama({f"{TOKENIZER}token_type": build.strings(f"{TOKENIZER}token_type", TOKENS)}),
        "tokenizer.ggml.token_type is an array of 48, not an array of numbers",
    ),
    "an end beyond": (
        tiny_llama({"eos": number(f"{TOKENIZER}eos_token_id", VOCAB)}),
        "eos_token_id is 48, but the vocabulary has 48 tokens",
    ),
    "an end that is a text": (
        with_text(f"{TOKENIZER}eos_token_id", "</s>"),
        "eos_token_id is '</s>', not an integer",
    ),
    "a flag of 2": (
        tiny_llama({"bos": number(f"{TOKENIZER}add_bos_token", 2)}),
        "add_bos_token is 2, not true or false",
    ),
}
HOSTILE: dict[str, tuple[bytes, str]] = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("foreign", FOREIGN),
        ("counts", COUNTS),
        ("keys", KEYS),
        ("tensors", TENSORS),
        ("tokenizers", TOKENIZERS),
    )
    for name, case in cases.items()
}
