"""The options of `deliveryGuarantee`, and what stands against it among the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.exactly_once.names import DECISION_LOG_TOPIC, prefix_fault
from spark_kafka_sink.words import TOPIC_NAME_RULE, is_topic_name

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
MISMATCH_FAILS, MISMATCH_WARNS = "fail", "warn"
BROKERS_CHOOSE = -1
_REPLICAS_MAX = 32_767
_KEY_CHARACTERS_MAX = 200

DELIVERY_OPTIONS = (
    (
        "deliveryGuarantee",
        AT_LEAST_ONCE,
        "`exactly-once`: read_committed readers see each row once, and a job that fails not at all",
    ),
    (
        "transactionalIdPrefix",
        "",
        "the beginning of all transactional ids of this query; without it made from `checkpointLocation`",
    ),
    ("idempotencyKey", "", "of a batch job: a job whose key is committed already writes nothing"),
    (
        "onReplayMismatch",
        MISMATCH_FAILS,
        "a batch that is in Kafka already and now has other rows: `fail`, or `warn` and let what was committed stand",
    ),
    ("decisionLogTopic", DECISION_LOG_TOPIC, "the compacted topic for what is decided; created if it is missing"),
    ("decisionLogReplication", str(BROKERS_CHOOSE), "its replicas, if it is created; -1 leaves them to the brokers"),
)
_NAMES = tuple(name for name, _, _ in DELIVERY_OPTIONS[1:])
TIMEOUT = "transaction.timeout.ms"


@dataclass(frozen=True)
class DeliveryOptions:
    """What exactly once needs to know. None, where a user said nothing."""

    prefix: str | None
    key: str | None
    topic: str
    replication: int
    timeout_ms: int | None
    checkpoint: str | None
    tolerates_mismatch: bool = False


def parse_delivery(own: Mapping[str, str], producer: Mapping[str, str], faults: list[str]) -> DeliveryOptions | None:
    """None: at least once. `producer`: its options, lower-cased and without their prefix."""
    guarantee = own.get("deliveryguarantee", AT_LEAST_ONCE).strip().lower()
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        faults.append(f"Option 'deliveryGuarantee' must be '{AT_LEAST_ONCE}' or '{EXACTLY_ONCE}', not {guarantee!r}.")
    if guarantee != EXACTLY_ONCE:
        faults.extend(
            f"Option '{name}' has no effect unless 'deliveryGuarantee' is '{EXACTLY_ONCE}'."
            for name in _NAMES
            if name.lower() in own
        )
        return None
    faults.extend(_conflicts(own, producer))
    topic = own.get("decisionlogtopic", DECISION_LOG_TOPIC).strip()
    if not is_topic_name(topic):
        faults.append(f"Option 'decisionLogTopic': {topic!r} is no name for a topic; it takes {TOPIC_NAME_RULE}.")
    timeout = producer.get(TIMEOUT, "").strip()
    return DeliveryOptions(
        prefix=_prefix(own, faults),
        key=_key(own, faults),
        topic=topic,
        replication=_replication(own, faults),
        timeout_ms=int(timeout) if timeout.isdecimal() else None,  # the producer's own table has the words for others
        checkpoint=own.get("checkpointlocation", "").strip() or None,
        tolerates_mismatch=_tolerates_mismatch(own, faults),
    )


def _conflicts(own: Mapping[str, str], producer: Mapping[str, str]) -> list[str]:
    asked = f"Option 'deliveryGuarantee' is '{EXACTLY_ONCE}'"
    faults = []
    if own.get("onrecorderror", "").strip().lower() == "deadletter":
        faults.append(
            f"{asked}, so 'onRecordError' must be 'fail': a record that is refused makes its transaction one that can "
            "only be aborted, so that no other row of the task could be committed."
        )
    if producer.get("acks", "all").strip().lower() not in ("all", "-1"):
        faults.append(f"{asked}, so 'kafka.acks' must be 'all'.")
    if producer.get("enable.idempotence", "true").strip().lower() == "false":
        faults.append(f"{asked}, so 'kafka.enable.idempotence' must not be 'false'.")
    if producer.get("retries", "1").strip() == "0":
        faults.append(f"{asked}, so 'kafka.retries' must not be 0.")
    in_flight = producer.get("max.in.flight.requests.per.connection", "5").strip()
    if in_flight.isdecimal() and int(in_flight) > 5:
        faults.append(f"{asked}, so 'kafka.max.in.flight.requests.per.connection' must be at most 5.")
    return faults


def _prefix(own: Mapping[str, str], faults: list[str]) -> str | None:
    value = own.get("transactionalidprefix")
    if value is None:
        return None
    fault = prefix_fault(value.strip())
    if fault is not None:
        faults.append(f"Option 'transactionalIdPrefix': {fault}.")
    return value.strip()


def _key(own: Mapping[str, str], faults: list[str]) -> str | None:
    value = own.get("idempotencykey")
    if value is None:
        return None
    value = value.strip()
    if not 1 <= len(value) <= _KEY_CHARACTERS_MAX:
        faults.append(f"Option 'idempotencyKey' must have 1 to {_KEY_CHARACTERS_MAX} characters; it has {len(value)}.")
    return value


def _tolerates_mismatch(own: Mapping[str, str], faults: list[str]) -> bool:
    value = own.get("onreplaymismatch", MISMATCH_FAILS).strip().lower()
    if value not in (MISMATCH_FAILS, MISMATCH_WARNS):
        faults.append(f"Option 'onReplayMismatch' must be '{MISMATCH_FAILS}' or '{MISMATCH_WARNS}', not {value!r}.")
    return value == MISMATCH_WARNS


def _replication(own: Mapping[str, str], faults: list[str]) -> int:
    value = own.get("decisionlogreplication", str(BROKERS_CHOOSE)).strip()
    if value == str(BROKERS_CHOOSE):
        return BROKERS_CHOOSE
    if not value.isdecimal() or not 1 <= int(value) <= _REPLICAS_MAX:
        faults.append(
            f"Option 'decisionLogReplication' must be -1 or a number from 1 to {_REPLICAS_MAX}, not {value!r}."
        )
        return BROKERS_CHOOSE
    return int(value)
