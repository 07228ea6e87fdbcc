"""CRC-32C in numpy, for environments without the crc32c package, such as `--py-files` or a notebook server.

Every record batch has this checksum. header.py imports this module only if the package is missing.

The data is processed in blocks. CRC-32C is linear: a block's contribution to the checksum is the XOR of the
contributions of its bytes, and the contribution of a byte depends only on the byte and on the number of bytes that
follow it in the block. A table holds all contributions, and one numpy operation looks them up for 64 blocks.

    table[zeros, byte]   contribution of a byte that is followed by `zeros` bytes
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInt32Array: TypeAlias = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli polynomial in reversed bit order."""
_ALL_ONES = 0xFFFFFFFF
"""CRC-32C inverts all bits of the state at the start and at the end."""
_STATE_BYTES = 4
_BLOCK_BYTES = 1024
"""Size of a block. The table has one row per byte of a block, so larger blocks would take more memory."""
_BLOCKS_PER_LOOKUP = 64
"""Number of blocks that are looked up at once. A lookup takes 12 bytes of memory per byte, so it stays below 1 MB."""

logging.getLogger(__name__).warning(
    "The package crc32c is not installed in this Python, so the checksums of batches are computed with numpy, which "
    "takes longer: pip install crc32c."
)


def crc32c(data: Any, checksum: int = 0, _gil_release_mode: int = -1) -> int:
    """Return the CRC-32C of `data`, or of some preceding bytes and `data` together.

    `checksum`: the checksum of the preceding bytes; 0 if there are none.

    The signature is that of `crc32c.crc32c`. The third parameter is ignored, because numpy decides itself when to
    release the GIL.
    """
    message = np.frombuffer(data, np.uint8)
    state = checksum ^ _ALL_ONES
    # Process the incomplete block first, so that all blocks after it are full and can be looked up together.
    head_bytes = len(message) % _BLOCK_BYTES
    if head_bytes:
        head_block = message[:head_bytes].reshape(1, head_bytes)
        state = _shift_state(state, head_bytes) ^ int(_compute_contributions(head_block)[0])
    blocks = message[head_bytes:].reshape(-1, _BLOCK_BYTES)
    for start in range(0, len(blocks), _BLOCKS_PER_LOOKUP):
        for contribution in _compute_contributions(blocks[start : start + _BLOCKS_PER_LOOKUP]).tolist():
            state = _shift_state(state, _BLOCK_BYTES) ^ contribution
    return state ^ _ALL_ONES


def _compute_contributions(blocks: NDArray[np.uint8]) -> UInt32Array:
    """Return the contribution of each block to the checksum. `blocks` has one block per row."""
    size = blocks.shape[1]
    flat_table = _build_contribution_table().ravel()
    row_starts = np.arange(size - 1, -1, -1, dtype=np.intp) * 256  # the last byte is followed by 0 bytes
    contributions: UInt32Array = np.bitwise_xor.reduce(flat_table[row_starts + blocks], axis=1)
    return contributions


def _shift_state(state: int, zeros: int) -> int:
    """Return the state after `zeros` zero bytes have been processed."""
    # Each of the first four zeros shifts one byte out of the state, and the contribution of this byte is XORed into the
    # state. The byte with index 0 is followed by `zeros` - 1 zeros, the next one by one less, and so on.
    table = _build_contribution_table()
    shifted_out_bytes = min(zeros, _STATE_BYTES)
    shifted_state = state >> (8 * shifted_out_bytes)
    for index in range(shifted_out_bytes):
        byte = (state >> (8 * index)) & 0xFF
        shifted_state ^= int(table[zeros - 1 - index, byte])
    return shifted_state


@cache
def _build_contribution_table() -> UInt32Array:
    """Build the table that the module's docstring describes (1 MiB), once per process."""
    table = np.empty((_BLOCK_BYTES, 256), np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, (row >> 1) ^ np.uint32(_POLYNOMIAL), row >> 1)
    table[0] = row
    for zeros in range(1, _BLOCK_BYTES):
        row = (row >> 8) ^ table[0][row & 0xFF]
        table[zeros] = row
    return table
