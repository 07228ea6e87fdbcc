"""CRC-32C with numpy, for a Python that has pyarrow and not the package crc32c: `--py-files`, a notebook's server.

Every record batch carries this checksum, so nothing could be written without one. header.py loads this module only
where the package is missing. Each byte of a block adds a value that depends on the byte and on how many bytes follow
it in the block; a table has these values, and one step of numpy looks up those of 64 blocks at a time.

    table[zeros, byte]   what a byte adds that `zeros` bytes follow
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table: TypeAlias = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, its bits reversed."""
_ALL_ONES = 0xFFFFFFFF
_BLOCK_BYTES = 1024
_BLOCKS_AT_ONCE = 64
"""What is looked up takes 12 bytes for each byte of the message: less than a megabyte."""

logging.getLogger(__name__).warning(
    "The package crc32c is not installed in this Python, so the checksums of batches are computed with numpy, which "
    "takes longer: pip install crc32c."
)


def crc32c(data: Any, checksum: int = 0, _gil_release_mode: int = -1) -> int:
    """The CRC-32C of `data`, continued from `checksum`, which is that of the bytes before. Equals crc32c.crc32c, whose
    third parameter means nothing here: numpy releases the interpreter's lock by itself."""
    message = np.frombuffer(data, np.uint8)
    state = checksum ^ _ALL_ONES
    head = len(message) % _BLOCK_BYTES
    if head:
        state = _moved(state, head) ^ int(_added(message[:head].reshape(1, head))[0])
    blocks = message[head:].reshape(-1, _BLOCK_BYTES)
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        for added in _added(blocks[first : first + _BLOCKS_AT_ONCE]).tolist():
            state = _moved(state, _BLOCK_BYTES) ^ added
    return state ^ _ALL_ONES


def _added(blocks: NDArray[np.uint8]) -> Table:
    """What each row of bytes adds to the state that was there before it, moved past it."""
    size = blocks.shape[1]
    rows = np.arange(size - 1, -1, -1, dtype=np.intp) * 256
    added: Table = np.bitwise_xor.reduce(_table().ravel()[rows + blocks], axis=1)
    return added


def _moved(state: int, zeros: int) -> int:
    """The state after `zeros` bytes of zero. Its four bytes move out, one with each of the first four."""
    table = _table()
    moved = state >> 8 * min(zeros, 4)
    for at in range(min(zeros, 4)):
        moved ^= int(table[zeros - 1 - at, state >> 8 * at & 0xFF])
    return moved


@cache
def _table() -> Table:
    table = np.empty((_BLOCK_BYTES, 256), np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, row >> 1 ^ np.uint32(_POLYNOMIAL), row >> 1)
    table[0] = row
    for zeros in range(1, _BLOCK_BYTES):
        row = row >> 8 ^ table[0][row & 0xFF]
        table[zeros] = row
    return table
