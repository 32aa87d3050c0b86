"""The embedding table as a row gather: rows are read as they are asked for, the table is never
held.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from flexinfer import _kernels
from flexinfer.errors import ReadError
from flexinfer.formats.checkpoint import FileIdentity, TensorInfo


class EmbeddingRows:
    """Rows of the table in its file, through the page cache (reclaimable, so not part of the
    budget).
    """

    def __init__(self, table: TensorInfo) -> None:
        self._table = table
        self._fd = os.open(table.path, os.O_RDONLY | os.O_CLOEXEC)
        self._identity = FileIdentity.of(os.fstat(self._fd))
        os.posix_fadvise(self._fd, table.offset_bytes, table.size_bytes, os.POSIX_FADV_RANDOM)
        self._row = np.empty(table.row_bytes, np.uint8)
        self.read_bytes = 0

    def gather(self, ids: Sequence[int], out: np.ndarray[Any, Any]) -> None:
        """Dequantise rows `ids` into `out` float32 [len(ids), columns].

        Raises ReadError, also where the file was written to: its rows may be of another model.
        """
        table, size = self._table, self._table.row_bytes
        if len(ids) > 1:
            self._ask_for(set(ids))
        for i, row in enumerate(ids):
            offset = table.offset_bytes + row * size
            try:
                got = os.preadv(self._fd, [self._row.data], offset)
            except OSError as error:
                raise ReadError(
                    f"{table.path}: {table.name} at offset {offset}: {error.strerror}",
                    "look at the disk and the connection to it, and try again",
                ) from error
            if got != size:
                raise ReadError(
                    f"{table.path}: {table.name} at offset {offset}: {got} of {size} bytes read",
                    "the file was truncated while in use; restore it and start again",
                )
            self.read_bytes += size
            _kernels.dequantize(
                table.block_type.ggml_id, self._row.ctypes.data, 1, table.columns, out[i : i + 1]
            )
        self._identity.check(table.path, self._fd)

    def _ask_for(self, ids: set[int]) -> None:
        """So that rows that are on the disk come side by side, not one after the other. It is only
        advice: what comes of it shows when the rows are read.
        """
        table = self._table
        for row in ids:
            offset = table.offset_bytes + row * table.row_bytes
            with suppress(OSError):
                os.posix_fadvise(self._fd, offset, table.row_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
