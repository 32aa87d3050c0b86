"""The allocator's heap, as far as a memory budget is concerned."""

import ctypes
from contextlib import suppress


def trim_heap() -> None:
    """Give what was freed back to the system; a budget counts resident pages."""
    with suppress(AttributeError, OSError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
