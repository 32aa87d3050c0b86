"""Token ids equal llama.cpp's: real vocabularies, scripts of the world, every pre-tokenizer.

The expected ids are made by benchmarks/golden_tokens.py.
"""

import hashlib
from pathlib import Path

import pytest

from flexinfer.formats.gguf import open_gguf
from flexinfer.tokenizer import Tokenizer, load_tokenizer
from flexinfer.tokenizer.pretokenizers import pre_tokenizer
from tokenizer_metadata import byte_pairs, golden

TEXTS = golden("texts.json")
TOKENS = golden("tokens.json")
PRE_GROUPS = golden("splits.json")["pre"]
LONG_TEXTS = [
    path
    for name in TOKENS["long"]["smollm"]
    if (path := Path("/usr/share/common-licenses") / name).exists()
]

# llama.cpp takes any `</s>` for an end token; in Gemma it is the HTML tag, also in plain text.
DIFFERENT = {("gemma", "plain", "struck")}
# llama.cpp's pattern for tekken leaves combining marks out of words; the published one does not.
TEKKEN_DIFFERENT = {"hindi", "thai", "tamil", "combining"}


@pytest.fixture(scope="module")
def tokenizers(smollm_path: Path, gemma_path: Path) -> dict[str, Tokenizer]:
    paths = {"smollm": smollm_path, "gemma": gemma_path}
    return {name: load_tokenizer(open_gguf(path).metadata) for name, path in paths.items()}


@pytest.mark.parametrize("model", ["smollm", "gemma"])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_llama_cpp(tokenizers: dict[str, Tokenizer], model: str, text: str) -> None:
    for kind in ("special", "plain"):
        ids = tokenizers[model].encode(TEXTS[text], special=kind == "special")
        equal = ids == TOKENS["models"][model][kind][text]
        assert equal == ((model, kind, text) not in DIFFERENT), (kind, ids)


@pytest.mark.parametrize("model", ["smollm", "gemma"])
@pytest.mark.parametrize("path", LONG_TEXTS, ids=lambda path: path.name)
def test_ids_of_a_long_text(tokenizers: dict[str, Tokenizer], model: str, path: Path) -> None:
    ids = tokenizers[model].encode(path.read_text(encoding="utf-8"))
    sha256 = hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()
    assert {"count": len(ids), "sha256": sha256} == TOKENS["long"][model][path.name]


@pytest.mark.parametrize("model", ["smollm", "gemma"])
@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_the_text_back(
    tokenizers: dict[str, Tokenizer], model: str, text: str
) -> None:
    expected = TEXTS[text]
    if model == "gemma":  # U+2581 is how its pieces write a space
        expected = expected.replace("\u2581", " ")
    if model == "smollm":  # its vocabulary has no letter for this byte
        expected = expected.replace("\x04", "")
    ids = tokenizers[model].encode(TEXTS[text], special=False)
    assert tokenizers[model].decode(ids) == expected


def test_endings_are_those_of_llama_cpp_that_end_a_turn(tokenizers: dict[str, Tokenizer]) -> None:
    # llama.cpp also stops at <reponame> (SmolLM 4) and at Gemma's HTML tag </s> (212).
    assert tokenizers["smollm"].end_ids == set(TOKENS["end_ids"]["smollm"]) - {4} == {0, 2}
    assert tokenizers["gemma"].end_ids == set(TOKENS["end_ids"]["gemma"]) - {212} == {1, 106}


@pytest.mark.parametrize(
    ("pre", "expected"), [(name, group["ids"]) for group in PRE_GROUPS for name in group["names"]]
)
def test_each_pre_tokenizer_cuts_as_llama_cpp(pre: str, expected: dict[str, list[int]]) -> None:
    tokenizer = load_tokenizer(byte_pairs(pre, bos_token_id=0))
    same = {
        name
        for name, text in TEXTS.items()
        if tokenizer.encode(text, special=False) == expected[name]
    }
    assert TEXTS.keys() - same == (TEKKEN_DIFFERENT if pre == "tekken" else set())


def test_the_goldens_tell_the_kinds_of_pre_tokenizer_apart() -> None:
    kinds = [{pre_tokenizer(name) for name in group["names"]} for group in PRE_GROUPS]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(set().union(*kinds)) == len(PRE_GROUPS) == 8
