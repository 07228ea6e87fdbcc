"""The workloads of the simulation, with the names and settings of their batches."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.exactly_once.entries import Batch, WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions, ExactlyOnceSettings
from spark_kafka_sink.exactly_once.transaction_names import GENERATED_PREFIX

TOPIC, LOG, PREFIX, QUERY, CHECKPOINT = "t", "decisions", "p", "query-1", "/checkpoint"
TIMEOUT_MS = 900_000
"""Transaction timeout of the tasks."""


class Workload(Enum):
    """The writes that a simulation plays: the micro-batches of a stream, or batch jobs."""

    STREAM = "stream"
    KEYED_JOBS = "keyed"
    """Jobs with an idempotency key, which is the number of the batch, under one prefix."""
    PREFIXED_JOBS = "prefixed"
    """Jobs without an idempotency key, under one prefix."""
    UNNAMED_JOBS = "unnamed"
    """Jobs with neither an idempotency key nor a prefix, so that each has a generated prefix of its own."""

    @property
    def is_idempotent(self) -> bool:
        """Whether a batch can be run again without writing duplicates."""
        return self in (Workload.STREAM, Workload.KEYED_JOBS)

    def build_batch(self, number: int) -> Batch:
        if self is Workload.STREAM:
            return Batch(QUERY, number)
        return Batch(key=str(number) if self is Workload.KEYED_JOBS else None, scope=TOPIC)

    def build_prefix(self, number: int) -> str:
        """Return the prefix of the query, or of the job with this number."""
        return f"{GENERATED_PREFIX}job-host-1-{number:012}" if self is Workload.UNNAMED_JOBS else PREFIX

    def build_settings(
        self, options: Mapping[str, str], prefix: str, idempotency_key: str | None = None
    ) -> ExactlyOnceSettings:
        """Return the settings of the query, or of a job with this prefix and key."""
        is_job, is_unnamed = self is not Workload.STREAM, self is Workload.UNNAMED_JOBS
        return ExactlyOnceSettings(
            parse_client_config(options),
            prefix,
            ExactlyOnceOptions(
                None if is_unnamed else prefix,
                idempotency_key=idempotency_key,
                log_topic=LOG,
                transaction_timeout_ms=TIMEOUT_MS,
            ),
            checkpoint="" if is_job else CHECKPOINT,
            scope=TOPIC if is_job else "",
            is_single_use=is_unnamed,
            writer_kind=WriterKind.JOB if is_job else WriterKind.STREAM,
        )


JOBS = (Workload.KEYED_JOBS, Workload.PREFIXED_JOBS, Workload.UNNAMED_JOBS)
