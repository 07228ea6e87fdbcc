"""BatchCompressor: closes and compresses batches, and estimates how many bytes of records a batch can hold.

The estimate for a topic is based on the compression ratios of its earlier batches. A compression ratio is the
compressed size divided by the uncompressed size.
"""

from __future__ import annotations

import logging

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.compression import Codec, CompressionRatios, require_codec
from spark_kafka_sink.records.header import HEADER_BYTES

_log = logging.getLogger(__name__)
_RATIO_ESTIMATION_FACTOR = 1.05
"""The estimated compressed size of a batch is multiplied by this safety factor, as in the Java client."""


class BatchCompressor:
    """Compresses batches with the codec of the configuration, which may be Codec.NONE.

    Any thread may call its methods.
    """

    def __init__(self, config: ProducerConfig) -> None:
        # Check the codec again: a pickled configuration was validated in another process, which may have more codecs.
        require_codec(config.codec)
        self._config = config
        self._codec = config.codec
        self.is_enabled = config.codec is not Codec.NONE
        self.max_encoded_copy_count = 2 if self.is_enabled else 1
        """Maximum number of encoded copies of a row that exist at the same time. Compression adds a second one."""
        self._ratios = CompressionRatios()

    def compute_max_batch_bytes(self, topic: str) -> int:
        """Return the maximum size of a topic's batches before compression.

        With compression, this is the size that is expected to compress to batch.size bytes, but at most
        max.request.size, or batch.size if that is larger.
        """
        if not self.is_enabled:
            return self._config.batch_size
        max_bytes = max(self._config.batch_size, self._config.max_request_size)
        estimated_ratio = self._ratios.get(topic, self._codec) * _RATIO_ESTIMATION_FACTOR
        return min(int(self._config.batch_size / estimated_ratio), max_bytes)

    def compute_max_batch_body_bytes(self, topic: str) -> int:
        """Return the maximum size of the records in a topic's batches, before compression and without the header.

        Once a partition has this many staged bytes, they fill a batch.
        """
        return self.compute_max_batch_bytes(topic) - HEADER_BYTES

    def close_batch(self, batch: ProducerBatch) -> None:
        """Close and compress a batch, and update the topic's compression ratio.

        If the codec fails, close the batch without compression and log a warning.
        """
        if not self.is_enabled:
            batch.close()
            return
        try:
            batch.close(self._codec, self._config.compression_level)
        except Exception as error:  # codec libraries raise exceptions of their own
            _log.warning("%r could not be compressed (%r). It is sent uncompressed.", batch, error)
            batch.close()
        ratio = batch.body_bytes / batch.uncompressed_bytes
        self._ratios.update(batch.topic_partition.topic, self._codec, ratio)

    def reset_ratio(self, batch: ProducerBatch) -> None:
        """Reset the topic's compression ratio, because the broker rejected one of its batches as too large.

        The ratio becomes 1, or the ratio of this batch if compression has made the batch larger.
        """
        if self.is_enabled:
            observed_ratio = batch.body_bytes / batch.uncompressed_bytes
            self._ratios.reset(batch.topic_partition.topic, self._codec, max(1.0, observed_ratio))
