"""Tokenizers of both kinds on small vocabularies: special tokens, endings, streaming, refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import FlexInferError, FormatError, PromptError, UnsupportedError
from flexinfer.tokenizer import Tokenizer, bpe, load_tokenizer
from flexinfer.tokenizer.specials import Specials
from tokenizer_metadata import BYTE, NORMAL, byte_pairs, golden, sentence_pieces

BPE = load_tokenizer(byte_pairs("llama-bpe"))
SPM = load_tokenizer(sentence_pieces())
GEMMA_LIKE = load_tokenizer(sentence_pieces(add_space_prefix=False))
BYTES = load_tokenizer(byte_pairs(merges=[]))
KINDS = {"bpe": BPE, "bytes": BYTES, "spm": SPM, "spm without prefix": GEMMA_LIKE}
BOS, END, TOOL, PAD = range(BPE.vocab_size - 4, BPE.vocab_size)


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]


# Special tokens


def test_one_bos_where_the_model_wants_one() -> None:
    assert BPE.encode("hi")[0] == BOS
    assert BPE.encode("<bos>hi") == BPE.encode("hi")
    assert BPE.encode("hi", bos=False) == BPE.encode("hi")[1:]
    assert SPM.encode("<s>the") == [1, *SPM.encode("the", bos=False)]
    without = load_tokenizer(byte_pairs("gpt-2"))
    assert BOS not in without.encode("hi")
    assert without.encode("<bos>hi").count(BOS) == 1


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_pairs("gpt-2"), False),
        (byte_pairs("gpt-2", add_bos_token=True), True),
        (byte_pairs("llama-bpe"), True),
        (byte_pairs("llama-bpe", add_bos_token=False), False),
        (sentence_pieces(), True),
        (sentence_pieces(add_bos_token=False), False),
    ],
)
def test_whether_bos_is_added(metadata: dict[str, Any], expected: bool) -> None:
    assert load_tokenizer(metadata).add_bos is expected


def test_an_empty_prompt_and_one_of_special_tokens_only() -> None:
    assert BPE.encode("") == [BOS]
    assert BPE.encode("", bos=False) == []
    assert SPM.encode("") == [1]
    assert BPE.encode("<bos><|im_end|><tool>") == [BOS, END, TOOL]
    assert SPM.encode("</s>[INST]", bos=False) == [2, SPM.vocab_size - 3]


def test_control_tokens_are_plain_text_unless_asked_for() -> None:
    assert END in BPE.encode("a<|im_end|>b")
    plain = BPE.encode("a<|im_end|>b<tool>", special=False, bos=False)
    assert END not in plain and plain[-1] == TOOL
    assert BPE.decode(plain) == "a<|im_end|>b<tool>"
    assert not {1, 2, SPM.vocab_size - 3} & set(SPM.encode("</s>[INST]", special=False, bos=False))


def test_control_tokens_are_not_shown_and_user_defined_ones_are() -> None:
    assert BPE.decode(BPE.encode("a<|im_end|>b<tool>")) == "ab<tool>"
    assert BPE.token_bytes(END) == b""
    assert BPE.token_bytes(END, control=True) == b"<|im_end|>"
    assert BPE.token_bytes(TOOL) == b"<tool>"
    assert SPM.token_bytes(0) == SPM.token_bytes(2) == b""
    assert SPM.token_bytes(2, control=True) == b"</s>"


def test_padding_of_the_vocabulary_is_known_and_silent() -> None:
    assert BPE.token_bytes(PAD) == b""
    assert SPM.sampled_rows(SPM.vocab_size) == SPM.vocab_size - 1
    assert PAD not in BPE.encode("[PAD]")
    assert BPE.sampled_rows(BPE.vocab_size + 100) == PAD
    assert BPE.sampled_rows(10) == 10


def test_a_space_goes_before_each_stretch_of_sentence_pieces() -> None:
    the = SPM.encode("the", bos=False)
    assert [SPM.token_bytes(i) for i in the] == [b" the"]
    instruction = SPM.vocab_size - 3
    assert SPM.encode("[INST]the", bos=False) == [instruction, *the]
    assert [GEMMA_LIKE.token_bytes(i) for i in GEMMA_LIKE.encode("the", bos=False)] == [b"the"]


def test_longest_special_token_at_the_leftmost_place() -> None:
    specials = Specials({"<a": 1, "<a>": 2, "a>": 3, "\n": 4, "\n\n": 5})
    assert list(specials.split("x<a>a><a\n\n\n")) == ["x", 2, 3, 1, 5, 4]
    assert list(specials.split("<<b")) == ["<<b"]
    assert list(Specials({}).split("<a>")) == ["<a>"]


# Endings


def test_end_ids_are_the_stated_and_the_known() -> None:
    assert BPE.end_ids == {END}
    assert SPM.end_ids == {2}  # sentencepiece's eos, not stated
    stated = load_tokenizer(byte_pairs(eos_token_id=7, eot_token_id=8, eom_token_id=9))
    assert stated.end_ids == {END, 7, 8, 9}
    assert (stated.bos_id, stated.eos_id) == (BOS, 7)


def test_a_normal_token_that_looks_like_an_end_is_none() -> None:
    tokens = [*golden("splits.json")["tokens"], "</s>"]
    metadata = byte_pairs(tokens=tokens, token_type=[NORMAL] * len(tokens), bos_token_id=0)
    assert load_tokenizer(metadata).end_ids == set()


def test_without_token_types_the_named_ids_are_special() -> None:
    tokenizer = load_tokenizer(byte_pairs(token_type=None, eos_token_id=END))
    assert tokenizer.encode("<|im_end|>") == [END]
    assert tokenizer.token_bytes(END) == b""


# Decoding and streaming


@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_byte_level_decoding_gives_the_text_back(text: str) -> None:
    assert BPE.decode(BPE.encode(text, special=False)) == text


@given(text=st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"])))
@settings(max_examples=200, deadline=None)
def test_sentence_pieces_decoding_gives_the_text_back(text: str) -> None:
    for tokenizer in (SPM, GEMMA_LIKE):
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@pytest.mark.parametrize("kind", ["bytes", "spm", "spm without prefix"])
def test_an_emoji_over_four_tokens_comes_whole(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode("a\U0001fabfb", bos=False)
    stream = tokenizer.detokenizer()
    pieces = [stream.push(i) for i in ids]
    assert pieces[-6:] == ["a", "", "", "", "\U0001fabf", "b"]
    assert stream.flush() == ""


@given(ids=st.lists(st.integers(0, SPM.vocab_size - 1)), kind=st.sampled_from(list(KINDS)))
@settings(deadline=None)
def test_streamed_text_is_the_decoded_text(ids: list[int], kind: str) -> None:
    tokenizer = KINDS[kind]
    stream = tokenizer.detokenizer()
    streamed = "".join(map(stream.push, ids)) + stream.flush()
    whole = b"".join(map(tokenizer.token_bytes, ids))
    whole = whole.removeprefix(b" ") if tokenizer.prefixes_space else whole
    assert streamed == tokenizer.decode(ids) == whole.decode(errors="replace")


def test_an_incomplete_tail_is_flushed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a\U0001fabf", bos=False)[:-1]
    stream = tokenizer.detokenizer()
    assert "".join(map(stream.push, ids)) == "a"
    assert stream.flush() == "\ufffd"


def test_a_leading_space_is_kept_where_a_text_goes_on() -> None:
    ids = SPM.encode("the the", bos=False)
    assert SPM.decode(ids) == "the the"
    assert SPM.decode(ids, continuing=True) == " the the"
    assert SPM.decode([1, *ids]) == "the the"  # BOS stands for nothing


# Refusals


@pytest.mark.parametrize(
    ("metadata", "error", "said"),
    [
        (byte_pairs("kimi-k2"), UnsupportedError, "'kimi-k2'"),
        (byte_pairs(pre=None), FormatError, "tokenizer.ggml.pre is absent"),
        ({"tokenizer.ggml.model": "t5"}, UnsupportedError, "'t5'"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedError, "'bert'"),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedError, "'rwkv'"),
        ({"tokenizer.ggml.model": "llama"}, FormatError, "tokens is absent"),
        (byte_pairs(tokens=[]), FormatError, "tokens is empty"),
        (byte_pairs(token_type=[NORMAL]), FormatError, "has 1 entries for 1160 tokens"),
        (byte_pairs(token_type=[7] * 1160), FormatError, "outside 1..6"),
        (byte_pairs(merges=["a"]), FormatError, "merges"),
        (byte_pairs(merges=["a ☃"]), FormatError, "merges"),
        (byte_pairs(merges=["a Z"]), FormatError, "merges"),
        (byte_pairs(tokens=["a"] * 1160), FormatError, "twice"),
        (byte_pairs(bos_token_id=1160), FormatError, "bos_token_id is 1160"),
        (byte_pairs(eos_token_id=-1), FormatError, "eos_token_id is -1"),
        (byte_pairs("llama-bpe", bos_token_id=None), FormatError, "bos_token_id is absent"),
        (sentence_pieces(scores=None), FormatError, "scores is absent"),
        (sentence_pieces(scores=[0.0]), FormatError, "1 entries for 274"),
        (sentence_pieces(token_type=[BYTE] * 274), FormatError, "tokens"),
    ],
)
def test_what_is_not_sound_or_not_known_is_refused(
    metadata: dict[str, Any], error: type[FlexInferError], said: str
) -> None:
    with pytest.raises(error, match=r"tokenizer\.ggml") as caught:
        load_tokenizer(metadata)
    assert said in str(caught.value)


def test_the_known_pre_tokenizers_are_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        load_tokenizer(byte_pairs("kimi-k2"))
    assert caught.value.hint and "smollm" in caught.value.hint and "qwen2" in caught.value.hint


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.model": "no_vocab"}])
def test_a_file_without_a_tokenizer_refuses_text_only(metadata: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.eos_token_id": 2})
    assert (tokenizer.eos_id, tokenizer.end_ids, tokenizer.vocab_size) == (2, {2}, 0)
    assert tokenizer.sampled_rows(64) == 64
    assert tokenizer.detokenizer().push(1) == ""
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1])):
        with pytest.raises(UnsupportedError, match="no tokenizer"):
            use()


def test_text_and_ids_that_cannot_be(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match=r"lone surrogate .* at character 1"):
        tokenizer.encode("a\ud83d")
    for token_id in (-1, tokenizer.vocab_size):
        with pytest.raises(PromptError, match=f"no token {token_id}:"):
            tokenizer.decode([token_id])


# Cost

_MEASURE = """
import resource, sys
from pathlib import Path
from flexinfer.formats.gguf import open_gguf
from flexinfer.tokenizer import load_tokenizer
metadata = open_gguf(Path(sys.argv[1])).metadata
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tokenizer = load_tokenizer(metadata)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_largest_vocabulary_takes_little_memory(gemma_path: Path) -> None:
    """Loading is part of the memory budget: 262,144 tokens in less than 110 MiB at the peak."""
    command = [sys.executable, "-c", _MEASURE, str(gemma_path)]
    peak_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak_kib < 110 * 1024


@pytest.mark.timeout(20)  # what is quadratic takes minutes
def test_long_texts_of_one_kind_take_linear_time() -> None:
    for text in ("<" * 100_000, "a" * 100_000, " " * 100_000, "\n" * 100_000):
        for tokenizer in KINDS.values():
            assert tokenizer.encode(text)


def test_cutting_a_long_text_changes_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(golden("texts.json").values()) + "\nx\n\ny.\nz \n \n 1\n22\r\n\t3 a b  c"
    for pre in (
        "llama-bpe",
        "dbrx",
        "gpt-2",
        "smollm",
        "qwen2",
        "default",
        "deepseek-v3",
        "tekken",
    ):
        tokenizer = load_tokenizer(byte_pairs(pre))
        uncut = tokenizer.encode(text)
        with monkeypatch.context() as patch:
            patch.setattr(bpe, "_CHUNK_CHARACTERS", 1)
            assert tokenizer.encode(text) == uncut
