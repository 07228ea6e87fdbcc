"""murmur2 over a column of keys, equal to the Java client's for every key.

    h = seed ^ length
    for each whole little-endian word k:    k *= M; k ^= k >>> 24; k *= M; h *= M; h ^= k
    the last 1 to 3 bytes are xored in, then h *= M
    h ^= h >>> 13; h *= M; h ^= h >>> 15

All keys take one step at the same time: first the first word of each, then the second word of those that have one, and
so on. The loop is over the words of the longest key, not over keys.
"""

from __future__ import annotations

from struct import iter_unpack

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.byte_column import ByteColumn

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFF_FFFF)


def partitions_of_keys(keys: ByteColumn, partition_count: int) -> NDArray[np.int32]:
    """The partition of each key, as in Java: the sign is dropped, then modulo. The rows of null keys mean nothing."""
    return ((murmur2(keys) & _POSITIVE) % np.uint32(partition_count)).astype(np.int32)


def murmur2(keys: ByteColumn) -> NDArray[np.uint32]:
    """The hash of each key; null is taken for empty."""
    lengths = np.maximum(keys.lengths, 0)
    data = np.frombuffer(keys.data, np.uint8)
    starts = keys.offsets[:-1].astype(np.int64)
    hashes: NDArray[np.uint32] = _SEED ^ lengths.astype(np.uint32)
    words = lengths >> 2
    longest = int(words.max(initial=0))
    shortest = int(words.min(initial=0)) if len(words) else 0
    rows: NDArray[np.int64] | None = None
    for index in range(longest):
        if index >= shortest:
            rows = np.flatnonzero(words > index) if rows is None else rows[words[rows] > index]
        _mix_words(hashes, data, starts + 4 * index if rows is None else starts[rows] + 4 * index, rows)
    _mix_tails(hashes, data, starts + 4 * words, lengths & 3)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(
    hashes: NDArray[np.uint32], data: NDArray[np.uint8], at: NDArray[np.int64], rows: NDArray[np.int64] | None
) -> None:
    word = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    word *= _M
    word ^= word >> np.uint32(24)
    word *= _M
    if rows is None:
        hashes *= _M
        hashes ^= word
    else:
        hashes[rows] = hashes[rows] * _M ^ word


def _mix_tails(
    hashes: NDArray[np.uint32], data: NDArray[np.uint8], at: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    for count in (3, 2, 1):
        rows = np.flatnonzero(lengths >= count)
        hashes[rows] ^= data[at[rows] + count - 1].astype(np.uint32) << np.uint32(8 * (count - 1))
    rows = np.flatnonzero(lengths)
    hashes[rows] *= _M


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The same for one key: arrays cost more than this loop does for keys of the usual length."""
    seed, m, mask = 0x9747B28C, 0x5BD1E995, 0xFFFF_FFFF
    length = len(key)
    whole = length & ~3
    result = seed ^ length
    for (word,) in iter_unpack("<I", key[:whole]):
        word = word * m & mask
        word = (word ^ word >> 24) * m & mask
        result = (result * m & mask) ^ word
    if length > whole:
        result = (result ^ int.from_bytes(key[whole:], "little")) * m & mask
    result = (result ^ result >> 13) * m & mask
    return ((result ^ result >> 15) & 0x7FFF_FFFF) % partition_count
