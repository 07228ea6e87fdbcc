"""murmur2 hashes for a column of keys. A record's partition is computed from the hash of its key.

The hashes must stay identical to those of the Java client. Otherwise, records with the same key would go to different
partitions, depending on the client that sends them.

    h = seed ^ length
    for each complete little-endian word k:    k *= m; k ^= k >>> 24; k *= m; h *= m; h ^= k
    the last 1 to 3 bytes are xored into h, then h *= m
    h ^= h >>> 13; h *= m; h ^= h >>> 15

Words have 32 bits. All keys are hashed together, one word at a time: the first word of every key, then the second word
of every key that has one, and so on. So the loop has one iteration per word of the longest key, instead of one per key.
It works in place, in a few arrays that fit into the CPU cache.

There are two implementations, which return the same hashes: `_hash_equal_length_keys` and `_hash_mixed_length_keys`.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import to_narrowest_dtype
from spark_kafka_sink.records.byte_column import ByteColumn


def _to_uint32_scalar(value: int) -> NDArray[np.uint32]:
    """Convert a number to an array without dimensions, which numpy can use directly.

    It would convert a Python int on every call, which takes half as long as hashing one word of 1,000 keys.
    """
    return np.array(value, np.uint32)


# The seed, the multiplier and the shifts define the hash. The limits below affect only speed, not the result.
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
"""The constant m of murmur2."""
_UINT32_MASK = 0xFFFF_FFFF
_WORD_BYTES = 4
_WORD_BITS = 8 * _WORD_BYTES
_PAIR_BYTES = 2 * _WORD_BYTES
"""Size of two consecutive words, from which a word that begins in the first one can be extracted by a shift."""

_MULTIPLIER_SCALAR = _to_uint32_scalar(_MULTIPLIER)
_ONE_SCALAR = _to_uint32_scalar(1)
_WORD_SHIFT = _to_uint32_scalar(24)
_FIRST_FINAL_SHIFT = _to_uint32_scalar(13)
_SECOND_FINAL_SHIFT = _to_uint32_scalar(15)
_NON_NEGATIVE_MASK = _to_uint32_scalar(0x7FFF_FFFF)

_WORDS_PER_PASS = 4
"""Number of words of each key that are hashed in one pass over keys of equal length. With more words, there are fewer
passes, but the arrays must still fit into the CPU cache."""
_MAX_GATHERED_BYTES = 2 << 20
"""Maximum number of key bytes that are gathered at once. There is a limit because gathering makes three copies of
them."""
_MAX_SEPARATE_KEYS = 64
"""If at most this many keys have words left, it is faster to hash each key separately than to continue with passes."""
_MAX_SEPARATE_EQUAL_LENGTH_KEYS = _MAX_SEPARATE_KEYS // 4
"""The same limit for keys of equal length. Their passes are about four times as fast, because no words are gathered."""
_MIN_SEPARATE_WORDS = 64
"""Keys are hashed separately only if at least this many words are left, because each key has a fixed cost, which equals
that of a few passes."""


def compute_partitions(keys: ByteColumn, partition_count: int) -> NDArray[np.int32]:
    """Return the partition of each key, as in Java: the hash without its sign bit, modulo the number of partitions.

    The results for null keys are meaningless.
    """
    hashes = murmur2(keys)
    hashes &= _NON_NEGATIVE_MASK
    # This is hashes % partition_count. numpy is fast at division by a scalar (it multiplies and shifts), but not at the
    # remainder. So compute the remainders from the quotients, in place.
    divisor = _to_uint32_scalar(partition_count)
    quotients = hashes // divisor
    multiples: NDArray[np.uint32] = np.multiply(quotients, divisor, out=quotients)
    partitions: NDArray[np.uint32] = np.subtract(hashes, multiples, out=hashes)
    return partitions.view(np.int32)


def murmur2(keys: ByteColumn) -> NDArray[np.uint32]:
    """Return the murmur2 hash of each key, with Kafka's seed. A null key has the hash of an empty key."""
    if not keys.row_count:
        return np.empty(0, np.uint32)
    key_length = keys.find_uniform_length()  # -1 if all keys are null
    if key_length is not None and _should_hash_as_table(keys.row_count, key_length):
        hashes = _hash_equal_length_keys(keys, max(0, key_length))
    elif keys.row_count == 1 or keys.offsets.item(-1) - keys.offsets.item(0) <= _MAX_GATHERED_BYTES:
        hashes = _hash_mixed_length_keys(keys)
    else:
        # The keys have more bytes than may be gathered at once, so hash each half of them separately.
        middle = keys.row_count // 2
        halves = keys.offsets[: middle + 1], keys.offsets[middle:]
        return np.concatenate([murmur2(ByteColumn(offsets, keys.data)) for offsets in halves])
    shifted = hashes >> _FIRST_FINAL_SHIFT
    hashes ^= shifted
    hashes *= _MULTIPLIER_SCALAR
    np.right_shift(hashes, _SECOND_FINAL_SHIFT, shifted)
    hashes ^= shifted
    return hashes


def _should_hash_as_table(key_count: int, key_length: int) -> bool:
    """Return whether to hash keys of equal length in passes over all of them, because they are many or short.

    If they are few and long, it is faster to handle them like keys of different lengths, and hash each key separately.
    """
    return key_count > _MAX_SEPARATE_EQUAL_LENGTH_KEYS or key_length < _WORD_BYTES * _MIN_SEPARATE_WORDS


def _hash_equal_length_keys(keys: ByteColumn, key_length: int) -> NDArray[np.uint32]:
    """Return the hashes of keys that all have the same length, before the final mixing step of murmur2.

    Such keys form a table with one row per key, in which column i is word i of every key.
    """
    hashes = np.full(keys.row_count, _SEED ^ key_length, np.uint32)
    word_count, tail_byte_count = divmod(key_length, _WORD_BYTES)
    for word_index in range(0, word_count, _WORDS_PER_PASS):
        pass_word_count = min(_WORDS_PER_PASS, word_count - word_index)
        words = _view_words(keys, key_length, start=_WORD_BYTES * word_index, word_count=pass_word_count).copy()
        _scramble(words)
        for word_of_each_key in words:
            hashes *= _MULTIPLIER_SCALAR
            hashes ^= word_of_each_key
    if tail_byte_count:
        _mix_tails_of_equal_length_keys(hashes, keys, key_length, tail_byte_count)
    return hashes


def _view_words(keys: ByteColumn, key_length: int, start: int, word_count: int) -> NDArray[np.uint32]:
    """Return a view of consecutive words of keys of equal length, with one row per word and one column per key.

    The words must lie within the keys: 0 <= start, and start + 4 * word_count <= key_length. Otherwise the view would
    contain bytes of other keys, or extend beyond the buffer.

    `start`: the offset of the first word in each key.
    """
    words: NDArray[np.uint32] = np.ndarray(
        (word_count, keys.row_count),
        "<u4",
        buffer=keys.data,
        offset=keys.offsets.item(0) + start,
        strides=(_WORD_BYTES, key_length),
    )
    return words


def _mix_tails_of_equal_length_keys(
    hashes: NDArray[np.uint32], keys: ByteColumn, key_length: int, tail_byte_count: int
) -> None:
    """Mix the tails of keys of equal length into their hashes, in place.

    A tail consists of the last 1 to 3 bytes of a key, which do not fill a word. Words are little-endian, so the first
    byte of a tail is the lowest byte of its word.
    """
    tail_words = np.empty_like(hashes)
    if key_length > tail_byte_count:
        # Read the last four bytes of each key as a word. Its lowest bytes were already hashed as part of the last
        # complete word, so shift them out. What remains is the tail. For example, a key of the bytes 1 2 3 4 5 6 has
        # the tail 5 6: the word 3 4 5 6 shifted by 16 bits is 5 6 0 0.
        tail_words[:] = _view_words(keys, key_length, start=key_length - _WORD_BYTES, word_count=1)[0]
        tail_words >>= _to_uint32_scalar(_WORD_BITS - 8 * tail_byte_count)
        hashes ^= tail_words
    else:
        # The keys are shorter than a word, so their last four bytes could begin before the buffer. The tail is the
        # whole key, and its bytes are mixed in one at a time.
        key_bytes = keys.to_matrix(key_length)
        for byte_index in range(tail_byte_count):
            tail_words[:] = key_bytes[:, byte_index]
            tail_words <<= _to_uint32_scalar(8 * byte_index)
            hashes ^= tail_words
    hashes *= _MULTIPLIER_SCALAR


def _hash_mixed_length_keys(keys: ByteColumn) -> NDArray[np.uint32]:
    """Return the hashes of keys of different lengths, before the final mixing step of murmur2.

    Each pass mixes one word into the hashes of all keys that have another word. The keys are sorted by length, so that
    these keys are a slice at the end. They start at arbitrary offsets, so their words must be gathered.
    """
    data_start = keys.offsets.item(0)
    starts, lengths = keys.offsets[:-1] - data_start, keys.offsets[1:] - keys.offsets[:-1]
    key_order, first_key_indices = _sort_by_length(lengths)
    starts, lengths = starts[key_order], lengths[key_order]
    hashes = lengths.view(np.uint32) ^ _to_uint32_scalar(_SEED)
    word_pairs = _read_word_pairs(keys.data, data_start, keys.offsets.item(-1))
    # The first word of a key begins in the pair at index start // 4, after start % 4 bytes.
    pair_indices, bit_shifts = (starts >> 2).astype(np.intp), ((starts & 3) << 3).astype(np.uint64)
    pass_count = _count_passes(first_key_indices, keys.row_count)
    for first_key_index in first_key_indices[:pass_count]:
        # The keys from index `first_key_index` on have this word.
        _mix(
            hashes[first_key_index:],
            _gather_words(word_pairs, pair_indices[first_key_index:], bit_shifts[first_key_index:]),
        )
        pair_indices[first_key_index:] += 1
    if pass_count < len(first_key_indices):  # a few long keys have more words
        for key_index in range(first_key_indices[pass_count], keys.row_count):
            remaining_word_count = (lengths.item(key_index) >> 2) - pass_count
            start = data_start + starts.item(key_index) + _WORD_BYTES * pass_count
            hashes[key_index] = _mix_key_words(hashes.item(key_index), keys.data, start, remaining_word_count)
            pair_indices[key_index] += remaining_word_count
    _mix_tails(hashes, _gather_words(word_pairs, pair_indices, bit_shifts), lengths & 3)
    unsorted_hashes = np.empty_like(hashes)
    unsorted_hashes[key_order] = hashes
    return unsorted_hashes


def _sort_by_length(lengths: NDArray[np.int32]) -> tuple[NDArray[np.intp] | slice, list[int]]:
    """Sort keys by length, so that the keys that have a certain word come last.

    Return the order of the keys, and for each word index, the position in this order of the first key that has such a
    word. If all keys have the same number of words, nothing is sorted, and the order is a slice that selects all keys.

    Example: keys of 9, 3 and 4 bytes have 2, 0 and 1 complete words. Their order is [1, 2, 0]. The keys from position 1
    on have a first word, and those from position 2 on a second one, so the positions are [1, 2].
    """
    min_length, max_length = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
    if min_length >> 2 == max_length >> 2:
        return slice(None), [0] * (max_length >> 2)
    key_order = to_narrowest_dtype(lengths, max_length).argsort(kind="stable")
    word_ends = np.arange(_WORD_BYTES, max_length + 1, _WORD_BYTES, dtype=np.int32)
    return key_order, lengths.searchsorted(word_ends, sorter=key_order).tolist()


def _count_passes(first_key_indices: list[int], key_count: int) -> int:
    """Return how many words of each key to hash in passes over all keys that have the word.

    The words after these belong to a few long keys, which are hashed one after the other. In a pass, one word of a
    single key takes about as long as one word of a hundred keys. So if all words were hashed in passes, one 100 kB key
    among short keys would take 25,000 passes.
    """
    pass_count = bisect_left(first_key_indices, key_count - _MAX_SEPARATE_KEYS)
    return len(first_key_indices) if len(first_key_indices) - pass_count < _MIN_SEPARATE_WORDS else pass_count


def _read_word_pairs(data: pa.Buffer, start: int, stop: int) -> NDArray[np.uint64]:
    """Return the eight bytes that begin at every fourth byte of data[start:stop], with zeros after its end.

    To get a word at any offset, callers take the pair of words that contains it, and shift the pair. That is faster
    than gathering 32-bit words from unaligned offsets. For example, the word at offset 6 is in the pair with index 1
    (bytes 4 to 11), which must be shifted by 2 bytes.
    """
    size = stop - start
    padded_bytes = np.zeros(size + _PAIR_BYTES, np.uint8)
    padded_bytes[:size] = np.frombuffer(data, np.uint8, count=size, offset=start)
    # The pairs overlap, because each has 8 bytes, and one begins every 4 bytes. The padding keeps the last pair in
    # bounds.
    pair_count = size // _WORD_BYTES + 1
    word_pairs: NDArray[np.uint64] = np.ndarray(
        (pair_count,), "<u8", buffer=padded_bytes, strides=(_WORD_BYTES,)
    ).copy()
    return word_pairs


def _gather_words(
    word_pairs: NDArray[np.uint64], pair_indices: NDArray[np.intp], bit_shifts: NDArray[np.uint64]
) -> NDArray[np.uint32]:
    """Return one word per key, extracted from the pair that contains it (see `_read_word_pairs`)."""
    gathered_words = word_pairs.take(pair_indices)
    gathered_words >>= bit_shifts
    return gathered_words.astype(np.uint32)


def _mix(hashes: NDArray[np.uint32], words: NDArray[np.uint32]) -> None:
    """Mix one word of each key into the hash of the key, in place. `words` is overwritten."""
    _scramble(words)
    hashes *= _MULTIPLIER_SCALAR
    hashes ^= words


def _mix_tails(hashes: NDArray[np.uint32], tail_words: NDArray[np.uint32], tail_byte_counts: NDArray[np.int32]) -> None:
    """Mix the tail of each key into the hash of the key, in place. `tail_words` is overwritten.

    A tail consists of the last 0 to 3 bytes of a key, which do not fill a word.

    `tail_words`: for each key, a word whose first bytes are the tail. The other bytes are surplus and may have any
    value.
    `tail_byte_counts`: the number of bytes of each tail.
    """
    # Shift the surplus bits out at the upper end, and shift the tail back. If there is no tail, all 32 bits are
    # surplus, and numpy returns 0 for a shift by 32 bits.
    surplus_bits = (_WORD_BITS - 8 * tail_byte_counts).view(np.uint32)
    tail_words <<= surplus_bits
    tail_words >>= surplus_bits
    hashes ^= tail_words
    has_tail = np.minimum(tail_byte_counts, 1).view(np.uint32)
    # Multiply by the constant m (_MULTIPLIER) if there is a tail, and by 1 if there is none.
    hashes *= has_tail * (_MULTIPLIER_SCALAR - _ONE_SCALAR) + _ONE_SCALAR


def _mix_key_words(key_hash: int, data: pa.Buffer, start: int, word_count: int) -> int:
    """Mix `word_count` words of a single key, the first of which begins at `start`, into its hash. Return the hash."""
    words = np.frombuffer(data, "<u4", count=word_count, offset=start).copy()
    _scramble(words)
    for word in words.tolist():
        key_hash = ((key_hash * _MULTIPLIER) & _UINT32_MASK) ^ word
    return key_hash


def _scramble(words: NDArray[np.uint32]) -> None:
    """Apply the first half of a murmur2 round to each word, in place: k *= m; k ^= k >>> 24; k *= m."""
    words *= _MULTIPLIER_SCALAR
    words ^= words >> _WORD_SHIFT
    words *= _MULTIPLIER_SCALAR
