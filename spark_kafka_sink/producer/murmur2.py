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
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    hashes = _of_one_length(keys, longest) if shortest == longest else _of_many_lengths(keys, lengths, shortest >> 2)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _of_one_length(keys: ByteColumn, length: int) -> NDArray[np.uint32]:
    """Word i of all keys is a column of a table: nothing has to be gathered."""
    hashes = np.full(keys.rows, _SEED ^ np.uint32(length), np.uint32)
    table = keys.matrix(keys.rows, length)
    whole = length & ~3
    for at in range(0, whole, 4):
        word: NDArray[np.uint32] = np.ndarray((keys.rows,), "<u4", keys.data, int(keys.offsets[0]) + at, (length,))
        _mix(hashes, word.copy())
    for at in range(whole, length):
        hashes ^= table[:, at].astype(np.uint32) << np.uint32(8 * (at - whole))
    if length > whole:
        hashes *= _M
    return hashes


def _of_many_lengths(keys: ByteColumn, lengths: NDArray[np.int64], words_min: int) -> NDArray[np.uint32]:
    data = np.frombuffer(keys.data, np.uint8)
    starts = keys.offsets[:-1].astype(np.int64)
    hashes: NDArray[np.uint32] = _SEED ^ lengths.astype(np.uint32)
    words = lengths >> 2
    # Word at any byte: the array's items overlap.
    word_at: NDArray[np.uint32] = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    rows: NDArray[np.int64] | None = None
    for index in range(int(words.max(initial=0))):
        if index < words_min:
            _mix(hashes, word_at[starts + 4 * index])
            continue
        rows = np.flatnonzero(words > index) if rows is None else rows[words[rows] > index]
        some = hashes[rows]
        _mix(some, word_at[starts[rows] + 4 * index])
        hashes[rows] = some
    _mix_tails(hashes, data, starts + 4 * words, lengths & 3)
    return hashes


def _mix(hashes: NDArray[np.uint32], word: NDArray[np.uint32]) -> None:
    """One step of the hash, in place; the words are used up."""
    word *= _M
    word ^= word >> np.uint32(24)
    word *= _M
    hashes *= _M
    hashes ^= word


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
    m, mask = 0x5BD1E995, 0xFFFF_FFFF
    length = len(key)
    whole = length & ~3
    result = 0x9747B28C ^ length
    for (word,) in iter_unpack("<I", key[:whole]):
        word = word * m & mask
        result = (result * m ^ (word ^ word >> 24) * m) & mask
    if length > whole:
        result = (result ^ int.from_bytes(key[whole:], "little")) * m & mask
    result = (result ^ result >> 13) * m & mask
    return ((result ^ result >> 15) & 0x7FFF_FFFF) % partition_count
