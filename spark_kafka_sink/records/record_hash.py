"""Hash of records over key, value and headers, and the digest of a set of records, computed on columns.

The digest of a set of records is the sum of their hashes modulo 2^128, so it does not depend on their order. It detects
accidental changes; it is no protection against someone who constructs records with the same digest.
docs/receipts.md defines the hash for other implementations, and explains why it detects changes.

All arithmetic is modulo 2^64. A field is padded with zero bytes to words of 8 bytes. Each of two streams s = 1, 2 is
linear in these words, and every factor is odd:

    sum(field)    = sum over words j of  K[s][j mod 16] * B[s]^(j div 16) * word j
    sum(record)   = sum over fields f of F[s]^f * (sum(field f) + L[s] * (length of f + 1))
    hash(record)  = mix(sum 1 + S[1]), mix(sum 2 + S[2])

Stream 1 reads words as little-endian numbers, stream 2 as big-endian ones. Field 0 is the key, 1 the value, 2 + 2i and
3 + 2i are the key and the value of header i. A null field adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import MAX_CHUNK_ROWS, RecordColumns
from spark_kafka_sink.records.header_column import HeaderColumn, read_header_column

UInt64Array = NDArray[np.uint64]

DIGEST_MODULUS = 1 << 128
DIGEST_COLUMNS = 3
"""Number of columns of the digests that `sum_groups` returns."""
_MASK_64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64."""
_WORD_BYTES = 8
_BLOCK_WORDS = 16
_BLOCK_BYTES = _BLOCK_WORDS * _WORD_BYTES
_BLOCK_BITS = 7
_CHUNK_WORDS = 12_288
"""Words that are processed at once. They fit into the cache, and the allocator reuses arrays of this size."""
_TAIL_MASKS: UInt64Array = (np.tri(_BLOCK_BYTES, _BLOCK_BYTES, -1, np.uint8) * np.uint8(255)).view("<u8")
"""Row n is a mask of the first n bytes of a block."""
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_BITS_32 = np.uint64(32)


def _mix(number: int) -> int:
    """Apply the finalizer of splitmix64, a bijection of the numbers below 2^64."""
    number = (number ^ number >> 30) * _MIX_FACTORS[0] & _MASK_64
    number = (number ^ number >> 27) * _MIX_FACTORS[1] & _MASK_64
    return number ^ number >> 31


def _mix_array(numbers: UInt64Array) -> UInt64Array:
    mixed: UInt64Array = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(_MIX_FACTORS[0])
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX_FACTORS[1])
    mixed ^= mixed >> np.uint64(31)
    return mixed


class _Stream:
    """The odd constants of one of the two streams, which are outputs of splitmix64 from `first` on."""

    def __init__(self, first: int) -> None:
        constants = [_mix(index * _GAMMA & _MASK_64) | 1 for index in range(first, first + _BLOCK_WORDS + 4)]
        self.words: UInt64Array = np.array(constants[:_BLOCK_WORDS], np.uint64)
        self.block, self.field, self.length, self.start = map(np.uint64, constants[_BLOCK_WORDS:])


_STREAMS = _Stream(1), _Stream(21)


class RecordHashes(NamedTuple):
    """The hashes of records: the upper and lower 64 bits of each."""

    high: UInt64Array
    low: UInt64Array

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: NDArray[np.int64]) -> RecordHashes:
        return RecordHashes(self.high.take(rows), self.low.take(rows))

    def digest(self) -> int:
        """Return the sum of all hashes modulo 2^128."""
        return digest_to_int(self.sum_groups(np.zeros(1, np.int64))[0]) if len(self) else 0

    def sum_groups(self, starts: NDArray[np.int64]) -> UInt64Array:
        """Sum groups of consecutive hashes, each from its start up to the next start. No group may be empty.

        Each row of the result is a digest as (upper 64 bits, bits 32 to 63, lowest 32 bits).
        """
        sums = [np.add.reduceat(part, starts) for part in (self.high, self.low >> _BITS_32, self.low & _LOW_32_BITS)]
        return carry_digests(np.stack(sums, axis=1))


def carry_digests(digests: UInt64Array) -> UInt64Array:
    """Reduce the two lower columns of sums of digests to 32 bits, in place."""
    for column in (2, 1):
        digests[:, column - 1] += digests[:, column] >> _BITS_32
        digests[:, column] &= _LOW_32_BITS
    return digests


def digest_to_int(digest: Iterable[Any]) -> int:
    """Convert a row of `sum_groups` to a number below 2^128."""
    high, middle, low = map(int, digest)
    return ((high << 64) + (middle << 32) + low) % DIGEST_MODULUS


def hash_records(columns: RecordColumns) -> RecordHashes:
    """Compute the hash of each record."""
    chunks = [_hash_chunk(chunk) for chunk in columns.chunks(MAX_CHUNK_ROWS)]
    if len(chunks) == 1:
        return chunks[0]
    empty = np.zeros(0, np.uint64)
    return RecordHashes(
        np.concatenate([empty, *(chunk.high for chunk in chunks)]),
        np.concatenate([empty, *(chunk.low for chunk in chunks)]),
    )


def _hash_chunk(columns: RecordColumns) -> RecordHashes:
    value_sums = _sum_fields(read_byte_column(columns.value))
    key_sums = None if columns.key is None else _sum_fields(read_byte_column(columns.key))
    headers = None if columns.headers is None else read_header_column(columns.headers)
    header_sums = None if headers is None or not len(headers.keys) else _sum_headers(headers)
    hashes = []
    for index, stream in enumerate(_STREAMS):
        sums = value_sums[index]
        sums *= stream.field
        if key_sums is not None:
            sums += key_sums[index]
        if header_sums is not None:
            sums += header_sums[index]
        sums += stream.start
        hashes.append(_mix_array(sums))
    return RecordHashes(*hashes)


def _sum_headers(headers: HeaderColumn) -> list[UInt64Array]:
    """Return the weighted sum of the fields of each record's headers, for each stream."""
    key_sums, value_sums = _sum_fields(read_byte_column(headers.keys)), _sum_fields(read_byte_column(headers.values))
    positions = np.arange(len(headers.keys)) - np.repeat(headers.starts[:-1], headers.counts)
    sums = []
    for index, stream in enumerate(_STREAMS):
        powers = _compute_powers(stream.field, 2 * int(headers.counts.max()) + 2)[2::2]
        by_header = key_sums[index] + stream.field * value_sums[index]
        by_header *= powers.take(positions)
        totals = np.zeros(len(by_header) + 1, np.uint64)
        np.cumsum(by_header, out=totals[1:])
        sums.append(totals.take(headers.starts[1:]) - totals.take(headers.starts[:-1]))
    return sums


def _sum_fields(column: ByteColumn) -> tuple[UInt64Array, UInt64Array]:
    """Return the sum of each field's words and length, for each stream."""
    offsets = column.offsets.astype(np.int64)
    sizes = offsets[1:] - offsets[:-1]
    tail_bytes = sizes & (_BLOCK_BYTES - 1)
    data = np.frombuffer(column.data, np.uint8) if column.data.size else np.zeros(0, np.uint8)
    sums = _sum_tails(data, offsets[1:] - tail_bytes, tail_bytes)
    if int(sizes.max(initial=0)) >= _BLOCK_BYTES:
        _add_blocks(sums, data, offsets[:-1], sizes >> _BLOCK_BITS)
    lengths = column.lengths.astype(np.int64)
    lengths += 1
    for stream, stream_sums in zip(_STREAMS, sums, strict=True):
        stream_sums += stream.length * lengths.view(np.uint64)
    return sums


def _gather_words(data: NDArray[np.uint8], starts: NDArray[np.int64], word_count: int) -> UInt64Array:
    """Return a matrix with the words from each start on. Starts need not be aligned."""
    width = word_count * _WORD_BYTES
    windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    words: UInt64Array = windows[starts].view("<u8").reshape(len(starts), word_count)
    return words


def _sum_words(words: UInt64Array) -> tuple[UInt64Array, UInt64Array]:
    """Return the weighted sum of each row, for each stream. Overwrites `words`."""
    first_factors, second_factors = (stream.words[: words.shape[1]] for stream in _STREAMS)
    first = np.einsum("ij,j->i", words, first_factors)
    words.byteswap(inplace=True)
    return first, np.einsum("ij,j->i", words, second_factors)


def _sum_tails(
    data: NDArray[np.uint8], starts: NDArray[np.int64], byte_counts: NDArray[np.int64]
) -> tuple[UInt64Array, UInt64Array]:
    """Return the sums of the bytes after the last complete block of each row.

    All rows of a chunk are read with the width of the longest one, and the bytes after their end are set to zero.
    """
    sums = np.zeros(len(starts), np.uint64), np.zeros(len(starts), np.uint64)
    max_words = (int(byte_counts.max(initial=0)) + _WORD_BYTES - 1) // _WORD_BYTES
    if not max_words:
        return sums
    masks = np.ascontiguousarray(_TAIL_MASKS[:, :max_words])
    for start in range(0, len(starts), _CHUNK_WORDS // max_words):
        rows = slice(start, start + _CHUNK_WORDS // max_words)
        words = _gather_tails(data, starts[rows], max_words)
        words &= masks.take(byte_counts[rows], axis=0)
        sums[0][rows], sums[1][rows] = _sum_words(words)
    return sums


def _gather_tails(data: NDArray[np.uint8], starts: NDArray[np.int64], word_count: int) -> UInt64Array:
    """Gather words from ascending starts. Words after the end of `data` are zero."""
    last_start = max(-1, len(data) - word_count * _WORD_BYTES)
    inside = int(starts.searchsorted(last_start, "right"))
    if inside == len(starts):
        return _gather_words(data, starts, word_count)
    base = max(last_start, 0)
    padded = np.concatenate([data[base:], np.zeros(_BLOCK_BYTES, np.uint8)])
    words = _gather_words(padded, starts[inside:] - base, word_count)
    return np.concatenate([_gather_words(data, starts[:inside], word_count), words]) if inside else words


def _add_blocks(
    sums: tuple[UInt64Array, UInt64Array],
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    block_counts: NDArray[np.int64],
) -> None:
    """Add the sums of the complete blocks to `sums`, which contain the sums of the tails, in place.

    Block number i of a row has the weight stream.block ** i, and the tail follows the last complete block.
    """
    row_indices = np.flatnonzero(block_counts)
    counts = block_counts.take(row_indices)
    first_blocks = counts.cumsum() - counts
    block_numbers = np.arange(int(counts.sum())) - np.repeat(first_blocks, counts)
    block_starts = np.repeat(starts.take(row_indices), counts) + block_numbers * _BLOCK_BYTES
    block_sums = np.empty(len(block_numbers), np.uint64), np.empty(len(block_numbers), np.uint64)
    for start in range(0, len(block_numbers), _CHUNK_WORDS // _BLOCK_WORDS):
        chunk = slice(start, start + _CHUNK_WORDS // _BLOCK_WORDS)
        words = _gather_words(data, block_starts[chunk], _BLOCK_WORDS)
        block_sums[0][chunk], block_sums[1][chunk] = _sum_words(words)
    for stream, row_sums, weighted_sums in zip(_STREAMS, sums, block_sums, strict=True):
        weights = _compute_powers(stream.block, int(counts.max()) + 1)
        weighted_sums *= weights.take(block_numbers)
        tail_sums = row_sums[row_indices] * weights.take(counts)
        row_sums[row_indices] = tail_sums + np.add.reduceat(weighted_sums, first_blocks)


def _compute_powers(base: np.uint64, count: int) -> UInt64Array:
    """Return the powers of `base` from 0 up to `count` - 1."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
