"""How each named byte-level BPE family cuts text into words before it merges.

The patterns are those published with the models (their tokenizer.json). Several patterns are
applied one after another, each to the pieces that the one before has left.
"""

from dataclasses import dataclass

from flexinfer.errors import FormatError, UnsupportedError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`whole_words`: a word that is a token is taken as it is, whatever the merges say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_KINDS: dict[PreTokenizer, str] = {
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    PreTokenizer((_GPT2,)): "gpt-2 phi-2 mpt olmo jais trillion",
    PreTokenizer((r"\p{N}", _GPT2)): "smollm starcoder refact command-r codeshell exaone",
    PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 pixtral"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe",
    PreTokenizer((_QWEN2,)): "qwen2 deepseek-r1-qwen stablelm2",
    PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True): "tekken",
    PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)): "deepseek-v3",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer that `tokenizer.ggml.pre` names; a guess would silently change the ids."""
    if name is None:
        raise FormatError(
            "tokenizer.ggml.pre is absent: how the text is to be split is not known",
            "convert the model again with a converter that writes it (llama.cpp since May 2024)",
        )
    if name not in _BY_NAME:
        raise UnsupportedError(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported",
            f"known are: {', '.join(sorted(_BY_NAME))}",
        )
    return _BY_NAME[name]
