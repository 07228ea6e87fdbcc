"""murmur2 over a column of keys, equal to the Java client's for every key.

    h = seed ^ length
    for each whole little-endian word k:    k *= M; k ^= k >>> 24; k *= M; h *= M; h ^= k
    the last 1 to 3 bytes are xored in, then h *= M
    h ^= h >>> 13; h *= M; h ^= h >>> 15

All keys take one step at the same time: first the first word of each, then the second word of those that have one, and
so on. The loop is over the words of the longest key, not over keys. It works in place, in a few arrays that stay in the
processor's cache.

Keys of one length are a table, and word i of all of them is a column of it. Keys of many lengths begin and end
anywhere: their words are gathered, the shortest keys first, so that those that have a word i are the last ones.

A step costs about as much for one key as for a hundred. So where only a few long keys are left, each is hashed by
itself, and the time stays in proportion to the bytes: one key of 100 kB among short ones is not 25,000 steps.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.byte_column import ByteColumn


def _number(value: int) -> NDArray[np.uint32]:
    """Return a number as an array without dimensions.

    numpy converts a plain number in each call, which takes half as long as the arithmetic of a thousand keys.
    """
    return np.array(value, np.uint32)


_SEED = 0x9747B28C
_M_INT, _MASK = 0x5BD1E995, 0xFFFF_FFFF
_M = _number(_M_INT)
_POSITIVE = _number(0x7FFF_FFFF)
_1, _13, _15, _24 = _number(1), _number(13), _number(15), _number(24)
_WORDS_AT_A_TIME = 4
"""Words of each key that are hashed in one pass: few passes, while the arrays stay in the processor's cache."""
_GATHERED_BYTES_MAX = 2 << 20
"""Keys of many lengths are copied three times over, for a moment: not more of them than that."""
_FEW_KEYS = 64
"""For at most this many keys a step costs more than the same word of each key by itself ..."""
_LONG_WORDS = 64
"""... if the longest of them has at least this many words left: to begin with a single key costs a few steps, too."""


def compute_partitions(keys: ByteColumn, partition_count: int) -> NDArray[np.int32]:
    """Compute the partition of each key as Java does: the hash without its sign, modulo the partition count.

    The results for null keys are meaningless.
    """
    hashes = murmur2(keys)
    hashes &= _POSITIVE
    # numpy divides by one number without a division for each row, but not where it takes remainders.
    count = _number(partition_count)
    quotients = hashes // count
    quotients *= count
    hashes -= quotients
    return hashes.view(np.int32)


def murmur2(keys: ByteColumn) -> NDArray[np.uint32]:
    """Compute the hash of each key. A null is hashed like an empty key."""
    if not keys.rows:
        return np.empty(0, np.uint32)
    length = keys.uniform_length()
    if length is not None and (keys.rows > _FEW_KEYS // 4 or length < 4 * _LONG_WORDS):
        hashes = _of_one_length(keys, max(0, length))
    elif keys.rows == 1 or keys.offsets.item(-1) - keys.offsets.item(0) <= _GATHERED_BYTES_MAX:
        hashes = _of_many_lengths(keys)
    else:
        middle = keys.rows // 2
        halves = keys.offsets[: middle + 1], keys.offsets[middle:]
        return np.concatenate([murmur2(ByteColumn(offsets, keys.data)) for offsets in halves])
    spare = hashes >> _13
    hashes ^= spare
    hashes *= _M
    np.right_shift(hashes, _15, spare)
    hashes ^= spare
    return hashes


def _of_one_length(keys: ByteColumn, length: int) -> NDArray[np.uint32]:
    rows, start = keys.rows, keys.offsets.item(0)
    hashes = np.full(rows, _SEED ^ length, np.uint32)
    for first in range(0, length >> 2, _WORDS_AT_A_TIME):
        count = min(_WORDS_AT_A_TIME, (length >> 2) - first)
        words = np.ndarray((count, rows), "<u4", keys.data, start + 4 * first, (4, length)).copy()
        _spread(words)
        for word in words:
            hashes *= _M
            hashes ^= word
    tail = length & 3
    if not tail:
        return hashes
    word = np.empty_like(hashes)
    if length > tail:  # the word that ends with the key, without what the last whole one had of it
        word[:] = np.ndarray((rows,), "<u4", keys.data, start + length - 4, (length,))
        word >>= _number(32 - 8 * tail)
        hashes ^= word
    else:
        for index in range(tail):
            word[:] = keys.to_matrix(rows, length)[:, index]
            word <<= _number(8 * index)
            hashes ^= word
    hashes *= _M
    return hashes


def _of_many_lengths(keys: ByteColumn) -> NDArray[np.uint32]:
    first = keys.offsets.item(0)
    starts, lengths = keys.offsets[:-1] - first, keys.offsets[1:] - keys.offsets[:-1]
    shortest, longest = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
    order: NDArray[np.intp] | slice = slice(None)
    begins = [0] * (longest >> 2)
    if shortest >> 2 < longest >> 2:
        # In few bytes: that makes it a radix sort.
        narrow = np.uint8 if longest < 1 << 8 else np.uint16 if longest < 1 << 16 else np.int32
        order = np.argsort(lengths.astype(narrow), kind="stable")
        starts, lengths = starts[order], lengths[order]
        begins = lengths.searchsorted(np.arange(4, longest + 1, 4, dtype=np.int32)).tolist()
    hashes = lengths.view(np.uint32) ^ _number(_SEED)
    spare = np.empty_like(hashes)
    pairs = _pairs_of_words(keys.data, first, keys.offsets.item(-1))
    at, shifts = (starts >> 2).astype(np.intp), ((starts & 3) << 3).astype(np.uint64)
    steps = bisect_left(begins, keys.rows - _FEW_KEYS)
    if len(begins) - steps < _LONG_WORDS:
        steps = len(begins)
    for begin in begins[:steps]:
        _mix(hashes[begin:], _words(pairs, at[begin:], shifts[begin:]))
        at[begin:] += 1
    for row in range(begins[steps], keys.rows) if steps < len(begins) else ():
        count = (lengths.item(row) >> 2) - steps
        hashes[row] = _mix_one(hashes.item(row), keys.data, first + starts.item(row) + 4 * steps, count)
        at[row] += count
    last = _words(pairs, at, shifts)
    tails = lengths & 3
    surplus = (32 - 8 * tails).view(np.uint32)  # numpy shifts a word by 32 bits to 0
    last <<= surplus
    last >>= surplus
    hashes ^= last
    hashes *= np.minimum(tails, 1).view(np.uint32) * (_M - _1) + _1  # M where there is a tail, else 1
    spare[order] = hashes
    return spare


def _pairs_of_words(data: pa.Buffer, first: int, stop: int) -> NDArray[np.uint64]:
    """Return the eight bytes at every fourth byte of the keys, with zeros after the last one.

    Words that do not begin at a multiple of four are slow to gather. So pairs that begin at one are gathered, and the
    word is shifted out of its pair.
    """
    size = stop - first
    padded = np.zeros(size + 8, np.uint8)
    padded[:size] = np.frombuffer(data, np.uint8, size, first)
    pairs: NDArray[np.uint64] = np.ndarray((size // 4 + 1,), "<u8", padded, 0, (4,)).copy()
    return pairs


def _words(pairs: NDArray[np.uint64], at: NDArray[np.intp], shifts: NDArray[np.uint64]) -> NDArray[np.uint32]:
    taken = pairs.take(at)
    taken >>= shifts
    return taken.astype(np.uint32)


def _mix(hashes: NDArray[np.uint32], word: NDArray[np.uint32]) -> None:
    """One step of the hash, in place; the words are used up."""
    _spread(word)
    hashes *= _M
    hashes ^= word


def _mix_one(result: int, data: pa.Buffer, start: int, count: int) -> int:
    """Go on with the hash of one key, by `count` words from `start` on."""
    words = np.frombuffer(data, "<u4", count, start).copy()
    _spread(words)
    for word in words.tolist():
        result = result * _M_INT & _MASK ^ word
    return result


def _spread(words: NDArray[np.uint32]) -> None:
    """Mix each word by itself, in place, before it enters the hash."""
    words *= _M
    words ^= words >> _24
    words *= _M
