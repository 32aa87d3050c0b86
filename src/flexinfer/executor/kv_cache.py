"""Pages of the KV cache and the sequences that hold them."""

import numpy as np

from flexinfer.ops.base import Array
from flexinfer.planner.sizes import PAGE_TOKENS


class PagePool:
    """Numbers of free pages; the same page number is used in every layer."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))

    def take(self) -> int:
        return self._free.pop()

    def give(self, page: int) -> None:
        self._free.append(page)


class Sequence:
    """The cached tokens of one text, and the pages they lie in."""

    def __init__(self, pool: PagePool, max_tokens: int) -> None:
        self._pool = pool
        self._pages = 0
        self.table: Array = np.zeros(-(-max_tokens // PAGE_TOKENS), np.int32)
        self.tokens: list[int] = []

    def reserve(self, tokens: int) -> None:
        """Take pages so that `tokens` tokens in all have a place."""
        needed = -(-tokens // PAGE_TOKENS)
        while self._pages < needed:
            self.table[self._pages] = self._pool.take()
            self._pages += 1

    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` tokens; whole pages beyond them go back."""
        del self.tokens[tokens:]
        keep = -(-tokens // PAGE_TOKENS)
        while self._pages > keep:
            self._pages -= 1
            self._pool.give(int(self.table[self._pages]))
