"""Hashes of records, over key, value and headers, and digests of sets of records.

The digest of a set of records is the sum of their 64-bit hashes modulo 2^128, so it does not depend on their order. A
digest detects accidental changes, but does not protect against someone who constructs records with the same digest.
docs/receipts.md defines the hash for other implementations and explains why it detects changes.

Digests are stored in receipts, so the hash of a record must never change.

A hash is computed modulo 2^64. A field is padded with zero bytes to little-endian words of 8 bytes, which are divided
into blocks of 32 words:

    sum(field)    = sum over words j of  K[j mod 32] * B^(j div 32) * (word j ^ word j >> 33)
    hash(record)  = mix(S + sum over fields f of F^f * (sum(field f) + L * (length of f + 1)))

K[0] to K[31], B, F, L and S are constants (_CONSTANTS). All are odd, so that multiplication by them is invertible.
mix() is the finalizer of splitmix64 (_mix).

Field 0 is the key and field 1 is the value. Fields 2 + 2i and 3 + 2i are the key and the value of header i. A null
field adds nothing to the sum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import MAX_CHUNK_ROWS, RecordColumns
from spark_kafka_sink.records.header_column import HeaderColumn, read_header_column

UInt64Array = NDArray[np.uint64]

# These numbers define the hash, so they must never change:
DIGEST_MODULUS = 1 << 128
_GAMMA = 0x9E3779B97F4A7C15
_MIX_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""_GAMMA and _MIX_FACTORS are the constants of splitmix64."""
_WORD_BYTES = 8
_BLOCK_WORDS = 32
"""Number of words in a block, the 32 of the formula."""
_BLOCK_BYTES = _BLOCK_WORDS * _WORD_BYTES
_FOLD_BITS = np.uint64(33)
"""Number of bits by which each word is shifted before it is XORed with itself, the 33 of the formula."""

# These numbers are for tuning, and do not affect the hash:
_MAX_UNDIVIDED_BLOCKS = 4
_MAX_UNDIVIDED_BYTES = _MAX_UNDIVIDED_BLOCKS * _BLOCK_BYTES
"""Maximum size of a field that is hashed in one step instead of block by block."""
_MAX_PADDING_RATIO = 1.5
"""Fields of more than one block are hashed undivided only if the largest is at most 1.5 times the average size.

The words of undivided fields form one matrix, in which each field is padded to the size of the largest field. The ratio
limits this padding.
"""
_MAX_SEPARATE_WORDS = 2
"""Maximum number of words per field for which adding up columns is faster than einsum."""
_CHUNK_BYTES = 1 << 18
"""Number of bytes that are gathered at once. Two arrays of this size fit into a core's L2 cache."""

_HALF_BITS = np.uint64(32)
_LOWER_HALF = np.uint64(0xFFFFFFFF)


def _mix(numbers: UInt64Array) -> UInt64Array:
    """Apply the finalizer of splitmix64, which is a bijection on the numbers below 2^64."""
    mixed: UInt64Array = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(_MIX_FACTORS[0])
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX_FACTORS[1])
    mixed ^= mixed >> np.uint64(31)
    return mixed


# The odd constants of the formula above: first K[0] to K[31], then B, F, L and S.
_CONSTANTS = _mix(np.arange(1, _BLOCK_WORDS + 5, dtype=np.uint64) * np.uint64(_GAMMA)) | np.uint64(1)
_BLOCK_FACTOR, _FIELD_FACTOR, _LENGTH_FACTOR, _START = _CONSTANTS[_BLOCK_WORDS:]


def _compute_powers(base: np.uint64, count: int) -> UInt64Array:
    """Return `base` to the powers 0 to `count` - 1, modulo 2^64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


_WORD_FACTORS: UInt64Array = np.outer(
    _compute_powers(_BLOCK_FACTOR, _MAX_UNDIVIDED_BLOCKS), _CONSTANTS[:_BLOCK_WORDS]
).ravel()
"""The factor of each word of an undivided field."""


def hash_records(columns: RecordColumns) -> UInt64Array:
    """Return the hash of each record."""
    chunks = [_hash_chunk(chunk) for chunk in columns.chunks(MAX_CHUNK_ROWS)]
    # Without rows there are no chunks, and numpy cannot concatenate nothing.
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.zeros(0, np.uint64), *chunks])


def split_hashes(hashes: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Return the upper and the lower 32 bits of each hash. Up to 2^32 such halves can be summed without overflow."""
    return hashes >> _HALF_BITS, hashes & _LOWER_HALF


def join_sums(upper: int, lower: int) -> int:
    """Return the sum of hashes, given the sums of their upper and of their lower halves (see `split_hashes`)."""
    return (upper << 32) + lower


def compute_digest(hashes: UInt64Array) -> int:
    """Return the digest of the records with these hashes."""
    return join_sums(*(int(np.add.reduce(half)) for half in split_hashes(hashes)))


def _hash_chunk(columns: RecordColumns) -> UInt64Array:
    """Return the hash of each record in a chunk, whose columns must be plain arrays."""
    sums = _sum_fields(read_byte_column(columns.value))
    sums *= _FIELD_FACTOR
    sums += _START
    if columns.key is not None:
        sums += _sum_fields(read_byte_column(columns.key))
    headers = None if columns.headers is None else read_header_column(columns.headers)
    if headers is not None and len(headers.keys):
        sums += _sum_headers(headers)
    return _mix(sums)


def _sum_headers(headers: HeaderColumn) -> UInt64Array:
    """Return, for each record, the sum over its header fields in the formula above: F^f * (...), for f from 2 on."""
    # First compute the sum of each header without the power of F, which depends on the header's position in its record.
    header_sums = _sum_fields(read_byte_column(headers.keys))
    header_sums += _FIELD_FACTOR * _sum_fields(read_byte_column(headers.values))
    positions = np.arange(len(header_sums)) - np.repeat(headers.starts[:-1], headers.counts)  # counts [2, 1]: [0, 1, 0]
    field_powers = _compute_powers(_FIELD_FACTOR, 2 * int(headers.counts.max()) + 2)
    key_powers = field_powers[2::2]  # the key of header i is field 2 + 2i
    header_sums *= key_powers.take(positions)
    # Then add up the headers of each record, as differences of cumulative sums. An overflow is harmless modulo 2^64.
    cumulative_sums = np.zeros(len(header_sums) + 1, np.uint64)
    np.cumsum(header_sums, out=cumulative_sums[1:])
    return cumulative_sums.take(headers.starts[1:]) - cumulative_sums.take(headers.starts[:-1])


def _sum_fields(column: ByteColumn) -> UInt64Array:
    """Return, for each field, sum(field) + L * (length + 1) in the formula above; 0 for a null field."""
    offsets = column.offsets.astype(np.int64)
    starts, sizes = offsets[:-1], offsets[1:] - offsets[:-1]
    data = np.frombuffer(column.data, np.uint8) if column.data.size else np.zeros(0, np.uint8)
    max_size = int(sizes.max(initial=0))
    max_padded_size = _MAX_PADDING_RATIO * column.nbytes / max(1, column.row_count)
    if max_size <= max(_BLOCK_BYTES, min(_MAX_UNDIVIDED_BYTES, max_padded_size)):
        sums = _sum_undivided_fields(data, starts, sizes)
    else:
        is_long = sizes > _BLOCK_BYTES
        sums = np.empty(len(sizes), np.uint64)
        sums[is_long] = _sum_blocks(data, starts[is_long], sizes[is_long])
        sums[~is_long] = _sum_undivided_fields(data, starts[~is_long], sizes[~is_long])
    sums += _LENGTH_FACTOR * (sizes + 1).view(np.uint64)
    if column.nulls is not None:
        sums[column.nulls] = 0
    return sums


def _sum_blocks(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> UInt64Array:
    """Return sum(field) for each field, computed block by block."""
    block_counts = (sizes + (_BLOCK_BYTES - 1)) // _BLOCK_BYTES  # rounded up
    first_blocks = block_counts.cumsum() - block_counts  # block_counts [2, 1] -> [0, 2]
    block_numbers = np.arange(int(block_counts.sum())) - np.repeat(first_blocks, block_counts)  # [0, 1, 0]
    block_offsets = block_numbers * _BLOCK_BYTES
    block_sizes = np.minimum(np.repeat(sizes, block_counts) - block_offsets, _BLOCK_BYTES)
    sums = _sum_undivided_fields(data, np.repeat(starts, block_counts) + block_offsets, block_sizes)
    sums *= _compute_powers(_BLOCK_FACTOR, int(block_counts.max())).take(block_numbers)
    return np.add.reduceat(sums, first_blocks)


def _sum_undivided_fields(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> UInt64Array:
    """Return sum(field) for each field, without dividing it into blocks. A field may also be a block of a longer one.

    `starts`: the position in `data` of each field, in ascending order.
    `sizes`: the size of each field, at most _MAX_UNDIVIDED_BYTES.
    """
    max_size = int(sizes.max(initial=0))
    word_count = max(1, (max_size + _WORD_BYTES - 1) // _WORD_BYTES)  # words of the largest field, rounded up
    width = word_count * _WORD_BYTES
    # Each field is read through a window of `width` bytes. The windows of the last fields, from index `first_padded`
    # on, would extend beyond the end of the data, so the data of these fields is copied and padded.
    first_padded = int(starts.searchsorted(len(data) - width, "right"))
    sums = np.empty(len(starts), np.uint64)
    fields_per_chunk = _CHUNK_BYTES // width  # at least 1, because width <= _MAX_UNDIVIDED_BYTES < _CHUNK_BYTES
    for start in range(0, first_padded, fields_per_chunk):
        chunk = slice(start, min(start + fields_per_chunk, first_padded))
        sums[chunk] = _sum_words(data, starts[chunk], sizes[chunk], word_count)
    if first_padded < len(starts):
        base = starts[first_padded]
        padded_data = np.concatenate([data[base:], np.zeros(width, np.uint8)])
        sums[first_padded:] = _sum_words(padded_data, starts[first_padded:] - base, sizes[first_padded:], word_count)
    return sums


def _sum_words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], word_count: int
) -> UInt64Array:
    """Return sum(field) for each field. No field may have more than `word_count` words.

    Each start must be followed by at least `word_count` words of data.
    """
    words = _gather_words(data, starts, word_count)
    # A gathered word may contain bytes after the end of its field. Replace these bytes by zeros.
    min_size, last_word_start = int(sizes.min()), (word_count - 1) * _WORD_BYTES
    if min_size < last_word_start:  # a field ends before the last word
        words &= _build_masks(word_count).take(sizes, axis=0)
    elif min_size < word_count * _WORD_BYTES:  # only the last word has bytes to replace
        words[:, -1] &= _build_masks(1)[:, 0].take(sizes - last_word_start)
    words ^= words >> _FOLD_BITS
    if word_count > _MAX_SEPARATE_WORDS:
        sums: UInt64Array = np.einsum("ij,j->i", words, _WORD_FACTORS[:word_count])
        return sums
    sums = words[:, 0] * _WORD_FACTORS[0]
    for index in range(1, word_count):
        sums += words[:, index] * _WORD_FACTORS[index]
    return sums


@lru_cache(maxsize=8)
def _build_masks(word_count: int) -> UInt64Array:
    """Return a matrix of masks, with `word_count` words per row. Row n keeps the first n bytes of these words.

    The matrix has at most 1 MB.
    """
    width = word_count * _WORD_BYTES
    # np.tri with -1 returns a matrix in which row n begins with n ones.
    masks: UInt64Array = (np.tri(width + 1, width, -1, np.uint8) * np.uint8(255)).view("<u8")
    return masks


def _gather_words(data: NDArray[np.uint8], starts: NDArray[np.int64], word_count: int) -> UInt64Array:
    """Return a matrix whose rows hold the `word_count` words from each start on. Starts need not be aligned."""
    width = word_count * _WORD_BYTES
    # A view with an element of `width` bytes at every position of the data. Indexing copies only the selected elements.
    windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    words: UInt64Array = windows[starts].view("<u8").reshape(len(starts), word_count)
    return words
