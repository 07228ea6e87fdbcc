"""Metrics of a producer, under the Java client's names where it has them.

Averages, maxima and rates look back on the last windows (metrics.num.samples x metrics.sample.window.ms, 30 s each by
default), totals on the whole life. A batch costs a handful of additions, a record nothing: what is sent is added up,
and taken over into the windows ten times a second, or when somebody reads. Names that end in `{topic=...}` are those of
one topic.

Several threads record, so one lock guards everything. It is reentrant: a signal handler may call flush() while the same
thread is inside of send(). Time is an argument.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.records.header import HEADER_BYTES

NAN = float("nan")
_COUNT_EVERY_MS = 100.0


class Windowed:
    """Count, sum and maximum over the last windows."""

    __slots__ = ("_samples", "_samples_max", "_window_ms")

    def __init__(self, window_ms: float, samples_max: int) -> None:
        self._window_ms = window_ms
        self._samples_max = samples_max
        self._samples: deque[list[float]] = deque(maxlen=samples_max)  # start, count, sum, maximum

    def record(self, value: float, now: float, count: float = 1, maximum: float | None = None) -> None:
        """Add a value, or the sum of `count` values."""
        top = value if maximum is None else maximum
        sample = self._samples[-1] if self._samples else None
        if sample is None or now - sample[0] >= self._window_ms:
            self._samples.append([now, count, value, top])
            return
        sample[1] += count
        sample[2] += value
        if top > sample[3]:
            sample[3] = top

    def average(self, now: float) -> float:
        samples = self._recent(now)
        count = sum(sample[1] for sample in samples)
        return sum(sample[2] for sample in samples) / count if count else NAN

    def maximum(self, now: float) -> float:
        return max((sample[3] for sample in self._recent(now)), default=NAN)

    def rate(self, now: float) -> float:
        """Per second. At first it is divided by a whole window, lest one record be a thousand a second."""
        samples = self._recent(now)
        if not samples:
            return 0.0
        elapsed_ms = max(now - samples[0][0], self._window_ms * max(1, self._samples_max - 1))
        return 1000 * sum(sample[2] for sample in samples) / elapsed_ms if elapsed_ms else 0.0

    def _recent(self, now: float) -> list[list[float]]:
        oldest = now - self._window_ms * self._samples_max
        return [sample for sample in self._samples if sample[0] > oldest]


class Meter:
    """A rate and a total of the same thing."""

    __slots__ = ("total", "windowed")

    def __init__(self, windowed: Windowed) -> None:
        self.windowed = windowed
        self.total = 0.0

    def mark(self, value: float, now: float) -> None:
        self.total += value
        self.windowed.record(value, now)


class _Sent:
    """What went out of one topic since it was last counted."""

    __slots__ = ("batches", "bytes", "bytes_max", "ratios", "records", "wait_ms", "wait_ms_max")

    def __init__(self) -> None:
        self.batches = self.records = self.bytes = self.bytes_max = 0
        self.ratios = self.wait_ms = self.wait_ms_max = 0.0

    def add(self, batches: Collection[ProducerBatch]) -> None:
        sizes = [batch.body_bytes for batch in batches]
        waits_ms = [batch.drained_ms - batch.created_ms for batch in batches]
        packed = [batch.body_bytes / batch.uncompressed_bytes for batch in batches if batch.codec]
        self.batches += len(batches)
        self.records += sum([batch.record_count for batch in batches])
        self.bytes += sum(sizes) + HEADER_BYTES * len(batches)
        self.bytes_max = max(self.bytes_max, max(sizes) + HEADER_BYTES)
        self.ratios += len(batches) - len(packed) + sum(packed)
        self.wait_ms += sum(waits_ms)
        self.wait_ms_max = max(self.wait_ms_max, *waits_ms)


class _TopicMetrics:
    """Of one topic; Java's group producer-topic-metrics."""

    __slots__ = ("bytes", "compression", "errors", "retries", "sent")

    def __init__(self, window_ms: float, samples_max: int) -> None:
        self.sent, self.bytes, self.errors, self.retries = (Meter(Windowed(window_ms, samples_max)) for _ in range(4))
        self.compression = Windowed(window_ms, samples_max)


class ProducerMetrics:
    """What the sender and the callers of send report, and one dict of all of it."""

    def __init__(self, window_ms: float, samples_max: int) -> None:
        self._window = (window_ms, samples_max)
        self._lock = threading.RLock()
        self._averages = {
            name: Windowed(window_ms, samples_max)
            for name in (
                "batch-size",
                "compression-rate",
                "record-queue-time",
                "records-per-request",
                "record-size",
                "request-latency",
                "produce-throttle-time",
            )
        }
        self._meters = {
            name: Meter(Windowed(window_ms, samples_max))
            for name in ("record-send", "record-retry", "record-error", "batch-split", "request", "outgoing-byte")
        }
        self._nanoseconds = {"flush-time-ns-total": 0.0, "metadata-wait-time-ns-total": 0.0}
        self._topics: dict[str, _TopicMetrics] = {}
        self._sent: defaultdict[str, _Sent] = defaultdict(_Sent)  # by topic, not counted yet
        self._sent_since_ms = 0.0
        self._requests_sent = 0

    # -- reports ------------------------------------------------------------------------------------------------------

    def rows_given(self, rows: int, bytes_total: int, bytes_largest: int, now: float) -> None:
        """Rows were taken from a caller."""
        with self._lock:
            self._averages["record-size"].record(bytes_total, now, rows, bytes_largest)

    def rows_refused(self, rows: int, now: float) -> None:
        """Rows failed before they were staged: as in Java they count as errors, but of no topic. A topic that does not
        exist would else have metrics for ever."""
        with self._lock:
            self._meters["record-error"].mark(rows, now)

    def request_sent(self, by_topic: Mapping[str, Mapping[int, ProducerBatch]], now: float) -> None:
        """A produce request goes out, with a batch for each of these partitions."""
        with self._lock:
            if now - self._sent_since_ms >= _COUNT_EVERY_MS:
                self._count_sent()
                self._sent_since_ms = now
            self._requests_sent += 1
            for topic, batches in by_topic.items():
                self._sent[topic].add(batches.values())

    def request_answered(self, latency_ms: float, throttle_ms: float, now: float) -> None:
        with self._lock:
            self._averages["request-latency"].record(latency_ms, now)
            self._averages["produce-throttle-time"].record(throttle_ms, now)

    def records_retried(self, topic: str, records: int, now: float) -> None:
        with self._lock:
            self._meters["record-retry"].mark(records, now)
            self._topic(topic).retries.mark(records, now)

    def records_failed(self, topic: str, records: int, now: float) -> None:
        with self._lock:
            self._meters["record-error"].mark(records, now)
            self._topic(topic).errors.mark(records, now)

    def batch_split(self, now: float) -> None:
        with self._lock:
            self._meters["batch-split"].mark(1, now)

    def waited(self, name: str, milliseconds: float) -> None:
        """Time that callers spent in "flush-time" or "metadata-wait-time"."""
        with self._lock:
            self._nanoseconds[f"{name}-ns-total"] += milliseconds * 1_000_000

    def _count_sent(self) -> None:
        """Take what has gone out over into the windows, as of the time when the first of it went."""
        requests, now, records, size = self._requests_sent, self._sent_since_ms, 0, 0
        for name, sent in self._sent.items():
            self._averages["batch-size"].record(sent.bytes, now, sent.batches, sent.bytes_max)
            self._averages["compression-rate"].record(sent.ratios, now, sent.batches)
            self._averages["record-queue-time"].record(sent.wait_ms, now, sent.batches, sent.wait_ms_max)
            topic = self._topic(name)
            topic.sent.mark(sent.records, now)
            topic.bytes.mark(sent.bytes, now)
            topic.compression.record(sent.ratios, now, sent.batches)
            records, size = records + sent.records, size + sent.bytes
        if requests:
            self._averages["records-per-request"].record(records, now, requests)
            self._meters["record-send"].mark(records, now)
            self._meters["request"].mark(requests, now)
            self._meters["outgoing-byte"].mark(size, now)
        self._sent.clear()
        self._requests_sent = 0

    def _topic(self, name: str) -> _TopicMetrics:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicMetrics(*self._window)
        return topic

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def records_retried_total(self) -> int:
        with self._lock:
            return int(self._meters["record-retry"].total)

    def snapshot(
        self, now: float, pool: BufferPool, *, requests_in_flight: int = 0, metadata_age_s: float = NAN
    ) -> dict[str, float]:
        """Everything by name. An average or maximum of nothing is nan, as in Java."""
        values: dict[str, float] = {
            "requests-in-flight": float(requests_in_flight),
            "metadata-age": metadata_age_s,
            "buffer-total-bytes": float(pool.bytes_max),
            "buffer-available-bytes": float(pool.free_bytes),
            "waiting-threads": float(pool.waiters),
            "bufferpool-wait-time-ns-total": pool.wait_ms_total * 1_000_000,
            "buffer-exhausted-total": float(pool.exhausted_total),
        }
        with self._lock:
            self._count_sent()
            values.update(self._nanoseconds)
            for name, windowed in self._averages.items():
                values[f"{name}-avg"] = windowed.average(now)
                if name != "compression-rate" and name != "records-per-request":
                    values[f"{name}-max"] = windowed.maximum(now)
            for name, meter in self._meters.items():
                values[f"{name}-rate"] = meter.windowed.rate(now)
                values[f"{name}-total"] = meter.total
            for topic, metrics in self._topics.items():
                values.update(_of_topic(topic, metrics, now))
        return values


def _of_topic(topic: str, metrics: _TopicMetrics, now: float) -> dict[str, float]:
    values = {f"compression-rate{{topic={topic}}}": metrics.compression.average(now)}
    for name, meter in (
        ("record-send", metrics.sent),
        ("byte", metrics.bytes),
        ("record-error", metrics.errors),
        ("record-retry", metrics.retries),
    ):
        values[f"{name}-rate{{topic={topic}}}"] = meter.windowed.rate(now)
        values[f"{name}-total{{topic={topic}}}"] = meter.total
    return values
