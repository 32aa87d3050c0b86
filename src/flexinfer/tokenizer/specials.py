"""Cutting special tokens out of a text before the rest of it is tokenized."""

import re
from collections.abc import Iterator, Mapping


class Specials:
    """Finds the tokens of `ids` in a text, leftmost first and of those the longest.

    A dictionary per length, not one alternation: Gemma has 6,400 such tokens, which a regular
    expression would take long to compile and to try at every `<`.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(known, reverse=True) for first, known in lengths.items()}
        firsts = "".join(map(re.escape, lengths))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        """The stretches of `text` between special tokens as str, the tokens as ids, in order."""
        start = position = 0
        while match := self._first.search(text, position):
            at = match.start()
            for length in self._lengths[match[0]]:
                found = self._ids.get(text[at : at + length])
                if found is not None:
                    if start < at:
                        yield text[start:at]
                    yield found
                    start = position = at + length
                    break
            else:
                position = at + 1
        if start < len(text):
            yield text[start:]
