"""Write the token ids that llama.cpp gives, for the tests to compare with.

    python benchmarks/golden_tokens.py --smollm SMOLLM.gguf --gemma GEMMA.gguf [--long FILE ...]

Needs `pip install llama-cpp-python==0.3.36 gguf`, in an environment of its own. Reads the texts in
tests/golden/texts.json and writes, beside them:

tokens.json
- `models`: per model and text the ids, with control tokens parsed ("special") and without;
- `end_ids`: per model the ids at which llama.cpp ends an answer;
- `long`: per model and --long file (by name) the count and the SHA-256 of its ids, which are
  written as decimal numbers with a space between.

splits.json
- `tokens`, `merges`: a byte-level BPE trained on the texts without cutting them into words, so that
  its merges run across words and every difference in cutting shows in the ids;
- `pre`: the names of pre-tokenizers in groups that give the same ids, with the ids per text.

Where a text begins with the BOS token llama.cpp puts a second one before it; it is left out here.
"""

import argparse
import ctypes
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import gguf
import llama_cpp as lc

MERGES = 900
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
LETTERS = [chr(byte if byte in _PRINTABLE else 0x100 + _OTHERS.index(byte)) for byte in range(256)]
GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
PRE_NAMES = [
    *("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"),
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"),
    *("qwen2", "deepseek-r1-qwen", "stablelm2", "tekken", "deepseek-v3"),
]


def digest(ids: list[int]) -> dict[str, object]:
    text = " ".join(map(str, ids))
    return {"count": len(ids), "sha256": hashlib.sha256(text.encode()).hexdigest()}


class Vocabulary:
    def __init__(self, vocab: object) -> None:
        self.vocab = vocab

    def tokenize(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        ids = (lc.llama_token * (len(data) + 16))()
        count = lc.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, special)
        bos = lc.llama_vocab_bos(self.vocab)
        found = list(ids[:count])
        return found[1:] if found[:2] == [bos, bos] else found

    def end_ids(self) -> list[int]:
        size = lc.llama_vocab_n_tokens(self.vocab)
        return [i for i in range(size) if lc.llama_vocab_is_eog(self.vocab, i)]


@contextmanager
def opened(path: Path) -> Iterator[Vocabulary]:
    params = lc.llama_model_default_params()
    params.vocab_only = True
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    yield Vocabulary(lc.llama_model_get_vocab(model))
    lc.llama_model_free(model)


def letters(text: str) -> list[str]:
    """The bytes of `text` in the letters of byte-level vocabularies."""
    return [LETTERS[byte] for byte in text.encode()]


def train(texts: Iterable[str], merge_count: int) -> tuple[list[str], list[str]]:
    """Tokens and merges: the most frequent pair is joined, `merge_count` times."""
    words = [letters(text) for text in texts]
    tokens = [*LETTERS]
    merges = []
    for _ in range(merge_count):
        (left, right), _ = Counter(pair for word in words for pair in pairwise(word)).most_common(
            1
        )[0]
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
        for word in words:
            for i in reversed(range(len(word) - 1)):
                if word[i : i + 2] == [left, right]:
                    word[i : i + 2] = [left + right]
    return tokens, merges


def write_vocabulary(path: Path, tokens: list[str], merges: list[str], pre: str) -> None:
    """A file of metadata alone, just enough for llama.cpp to read the vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    for add in (
        *(writer.add_context_length, writer.add_embedding_length, writer.add_block_count),
        *(writer.add_feed_forward_length, writer.add_head_count),
    ):
        add(256)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smollm", type=Path, required=True)
    parser.add_argument("--gemma", type=Path, required=True)
    parser.add_argument("--long", type=Path, action="append", default=[])
    args = parser.parse_args()

    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    texts = json.loads((GOLDEN / "texts.json").read_text(encoding="utf-8"))
    golden: dict[str, dict[str, object]] = {"models": {}, "end_ids": {}, "long": {}}
    for name, path in {"smollm": args.smollm, "gemma": args.gemma}.items():
        with opened(path) as vocabulary:
            golden["models"][name] = {
                kind: {key: vocabulary.tokenize(text, special) for key, text in texts.items()}
                for kind, special in {"special": True, "plain": False}.items()
            }
            golden["end_ids"][name] = vocabulary.end_ids()
            golden["long"][name] = {
                long.name: digest(vocabulary.tokenize(long.read_text(encoding="utf-8"), True))
                for long in args.long
            }
    ordinary = [text for name, text in texts.items() if not name.startswith("control")]
    tokens, merges = train(ordinary, MERGES)
    groups: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRE_NAMES:
            path = Path(folder) / "vocabulary.gguf"
            write_vocabulary(path, tokens, merges, pre)
            with opened(path) as vocabulary:
                ids = {key: vocabulary.tokenize(text, False) for key, text in texts.items()}
            for group in groups:
                if group["ids"] == ids:
                    group["names"].append(pre)
                    break
            else:
                groups.append({"names": [pre], "ids": ids})
    splits = {"tokens": tokens, "merges": merges, "pre": groups}
    for name, content in {"tokens.json": golden, "splits.json": splits}.items():
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (GOLDEN / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
