"""Stop strings against plain searching, however the text comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.executor.stops import StopMatcher


class Pieces:
    """A vocabulary whose tokens are the given bytes."""

    prefixes_space = False

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def shown(pieces: list[bytes], *stops: str) -> tuple[list[str], bool]:
    """What each piece lets through, what the end does, and whether a stop string came."""
    matcher = StopMatcher(Pieces(pieces), stops)
    texts = []
    for token in range(len(pieces)):
        texts.append(matcher.push(token))
        if matcher.stopped:
            return texts, True
    return [*texts, matcher.flush()], matcher.stopped


@given(text=st.text("ab", max_size=30), stop=st.text("ab", min_size=1, max_size=6), data=st.data())
def test_any_cut_into_pieces_gives_the_text_before_the_first_stop(
    text: str, stop: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
    texts, stopped = shown([text[start:end].encode() for start, end in ends], stop)
    assert "".join(texts) == text.split(stop)[0]
    assert stopped == (stop in text)


@pytest.mark.parametrize(
    ("pieces", "stops", "texts", "stopped"),
    [
        (["Hello", " wor", "ld"], (), ["Hello", " wor", "ld", ""], False),
        (["one E", "N", "D two"], ("END",), ["one ", "", ""], True),
        (["one E", "N", "V"], ("END",), ["one ", "", "ENV", ""], False),
        (["one E", "N"], ("END",), ["one ", "", "EN"], False),
        (["a, b. c"], (".", ","), ["a"], True),  # the first in the text, not in the list
        (["a\n", "\nb"], ("\n\n",), ["a", ""], True),
        (["aaab"], ("aab",), ["a"], True),
    ],
)
def test_what_may_become_a_stop_string_is_held_back(
    pieces: list[str], stops: tuple[str, ...], texts: list[str], stopped: bool
) -> None:
    assert shown([piece.encode() for piece in pieces], *stops) == (texts, stopped)


def test_a_stop_string_is_found_in_a_character_of_several_tokens() -> None:
    smile = "🙂".encode()
    assert shown([b"a", smile[:1], smile[1:3], smile[3:], b"b"], "🙂") == (["a", "", "", ""], True)
    assert shown([b"a", smile[:2]], "🙂") == (["a", "", "\ufffd"], False)


def test_without_a_tokenizer_there_is_no_text() -> None:
    matcher = StopMatcher(None, ("a",))
    assert (matcher.push(5), matcher.flush(), matcher.stopped) == ("", "", False)
