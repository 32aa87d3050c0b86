"""Pages of the KV cache and the sequences that hold them.

Layers that see everything and layers that see a window keep their pages apart: of a window's, those
that it has left are given back and used again further on. Keys are still visited by position.
"""

from collections.abc import Sequence as Items

import numpy as np

from flexinfer.ops.base import Array
from flexinfer.planner.sizes import PAGE_TOKENS


class PagePool:
    """Numbers of free pages, the same in every layer that sees the same window."""

    def __init__(self, pages: int, window_tokens: int | None = None) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self.window_tokens = window_tokens

    def take(self) -> int:
        return self._free.pop()

    def give(self, page: int) -> None:
        self._free.append(page)


class _Pages:
    """A sequence's pages of one pool: numbers `first` .. `end` - 1 of its positions' pages."""

    def __init__(self, pool: PagePool, max_tokens: int) -> None:
        self.pool = pool
        self.table: Array = np.zeros(-(-max_tokens // PAGE_TOKENS), np.int32)
        self.first = self.end = 0

    def reach(self, tokens: int) -> int:
        """The first position that a token behind `tokens` others sees."""
        window = self.pool.window_tokens
        return 0 if window is None else max(0, tokens - window + 1)

    def drop_before(self, position: int) -> None:
        while self.first < min(self.end, position // PAGE_TOKENS):
            self.pool.give(int(self.table[self.first]))
            self.first += 1

    def extend(self, tokens: int) -> None:
        while self.end * PAGE_TOKENS < tokens:
            self.table[self.end] = self.pool.take()
            self.end += 1

    def cut(self, tokens: int) -> None:
        while self.end > max(self.first, -(-tokens // PAGE_TOKENS)):
            self.end -= 1
            self.pool.give(int(self.table[self.end]))
        if not tokens:
            self.first = self.end = 0


class Sequence:
    """The cached tokens of one text, and the pages they lie in, one table for each pool."""

    def __init__(self, pools: Items[PagePool], max_tokens: int) -> None:
        self._pages = tuple(_Pages(pool, max_tokens) for pool in pools)
        self.tables: tuple[Array, ...] = tuple(pages.table for pages in self._pages)
        self.tokens: list[int] = []

    def reserve(self, tokens: int) -> None:
        """A place for `tokens` tokens in all; windows let go of what the next ones do not see."""
        for pages in self._pages:
            pages.drop_before(pages.reach(len(self.tokens)))
            pages.extend(tokens)

    def truncate(self, tokens: int) -> int:
        """Keep the first `tokens` tokens, or none where a window has let go of keys that the next
        one sees; returns how many are kept. Whole pages beyond them go back.
        """
        if any(pages.first * PAGE_TOKENS > pages.reach(tokens) for pages in self._pages):
            tokens = 0
        del self.tokens[tokens:]
        for pages in self._pages:
            pages.cut(tokens)
        return tokens
