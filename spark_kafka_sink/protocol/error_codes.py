"""Kafka's error codes: one table for the client, the producer and the embedded broker.

Codes, names, and which errors are retriable or ask for new metadata are Kafka's own, up to Kafka 4.3. `fatal` errors
end a producer that has written records. After an error that is `in_doubt` the records may be stored nevertheless. What
depends on the request and its history is decided where those are known: sending/outcome.py for records,
requests/ for all other requests. `advice` is for the user, where there is something that a user can do. It never says
whether the records are stored: an earlier attempt may have stored them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_kafka_sink.errors import AuthorizationError, BrokerError, ProducerFencedError


@dataclass(frozen=True)
class ErrorCode:
    code: int
    name: str
    retriable: bool = False
    refreshes_metadata: bool = False
    fatal: bool = False
    in_doubt: bool = False
    advice: str = ""


ERROR_CODES: dict[int, ErrorCode] = {}
_NAMES: set[str] = set()


# What kind of error a row is.
Kind = Literal["other", "retriable", "stale", "fatal"]
OTHER: Literal["other"] = "other"
RETRIABLE: Literal["retriable"] = "retriable"
STALE: Literal["stale"] = "stale"  # retriable once the metadata is refreshed
FATAL: Literal["fatal"] = "fatal"


def _row(code: int, name: str, kind: Kind = OTHER, advice: str = "", *, in_doubt: bool = False) -> int:
    if code in ERROR_CODES or name in _NAMES:
        raise ValueError(f"Two rows of the table have the code {code} or the name {name}. Remove one of them.")
    _NAMES.add(name)
    retriable = kind in (RETRIABLE, STALE)
    ERROR_CODES[code] = ErrorCode(code, name, retriable, kind == STALE, kind == FATAL, in_doubt, advice)
    return code


def error_code(code: int) -> ErrorCode:
    """The row of a code; numbers newer than the table get one that promises nothing."""
    return ERROR_CODES.get(code) or ErrorCode(
        code,
        f"UNKNOWN_{code}",
        in_doubt=True,
        advice="The broker knows this error, we do not: it is newer than this library.",
    )


def broker_error(code: int, context: str, advice: str | None = None) -> BrokerError:
    """The exception for a broker's answer: what was tried, what it said, what to do; `advice` in place of the row's."""
    row = error_code(code)
    kind = _KINDS.get(code, BrokerError)
    message = f"{context}: {row.name} ({code})" + (f". {advice or row.advice}" if advice or row.advice else "")
    return kind(message, code=code, name=row.name)


UNKNOWN_SERVER_ERROR = _row(
    -1,
    "UNKNOWN_SERVER_ERROR",
    OTHER,
    "The broker failed in a way that it has no name for; its own log says more.",
    in_doubt=True,
)
NONE = _row(0, "NONE")
OFFSET_OUT_OF_RANGE = _row(1, "OFFSET_OUT_OF_RANGE")
CORRUPT_MESSAGE = _row(
    2,
    "CORRUPT_MESSAGE",
    RETRIABLE,
    "The checksum was wrong on arrival: look for a faulty proxy, network card or memory on the way.",
)
UNKNOWN_TOPIC_OR_PARTITION = _row(
    3,
    "UNKNOWN_TOPIC_OR_PARTITION",
    STALE,
    "Create the topic, or correct its name. A topic just created needs a moment to be known everywhere.",
)
INVALID_FETCH_SIZE = _row(4, "INVALID_FETCH_SIZE")
LEADER_NOT_AVAILABLE = _row(
    5,
    "LEADER_NOT_AVAILABLE",
    STALE,
    "The partition is electing a leader. If this stays, too few of its replicas are alive.",
)
NOT_LEADER_OR_FOLLOWER = _row(
    6, "NOT_LEADER_OR_FOLLOWER", STALE, "The partition's leader has moved; the new one is looked up."
)
REQUEST_TIMED_OUT = _row(
    7,
    "REQUEST_TIMED_OUT",
    RETRIABLE,
    "The followers did not keep up within request.timeout.ms.",
    in_doubt=True,
)
BROKER_NOT_AVAILABLE = _row(8, "BROKER_NOT_AVAILABLE", OTHER, "The broker is not running or not reachable.")
REPLICA_NOT_AVAILABLE = _row(9, "REPLICA_NOT_AVAILABLE", STALE, "A replica is missing; look at the brokers' state.")
MESSAGE_TOO_LARGE = _row(
    10,
    "MESSAGE_TOO_LARGE",
    OTHER,
    "Raise the topic's max.message.bytes, or write smaller records and batches (batch.size).",
)
STALE_CONTROLLER_EPOCH = _row(11, "STALE_CONTROLLER_EPOCH")
OFFSET_METADATA_TOO_LARGE = _row(12, "OFFSET_METADATA_TOO_LARGE")
NETWORK_EXCEPTION = _row(
    13,
    "NETWORK_EXCEPTION",
    STALE,
    "The connection was lost before the answer came.",
    in_doubt=True,
)
COORDINATOR_LOAD_IN_PROGRESS = _row(
    14, "COORDINATOR_LOAD_IN_PROGRESS", RETRIABLE, "The coordinator still reads its log after a restart."
)
COORDINATOR_NOT_AVAILABLE = _row(
    15,
    "COORDINATOR_NOT_AVAILABLE",
    RETRIABLE,
    "Check that the internal topics __transaction_state and __consumer_offsets are healthy.",
)
NOT_COORDINATOR = _row(16, "NOT_COORDINATOR", RETRIABLE, "The coordinator has moved.")
INVALID_TOPIC_EXCEPTION = _row(
    17,
    "INVALID_TOPIC_EXCEPTION",
    OTHER,
    "Topic names take up to 249 letters, digits, '.', '_' and '-'; internal topics are not written to.",
)
RECORD_LIST_TOO_LARGE = _row(
    18,
    "RECORD_LIST_TOO_LARGE",
    OTHER,
    "The batch exceeds the topic's segment.bytes; lower batch.size or raise the topic's segment.bytes.",
)
NOT_ENOUGH_REPLICAS = _row(
    19,
    "NOT_ENOUGH_REPLICAS",
    RETRIABLE,
    "Fewer replicas are in sync than min.insync.replicas asks for: bring the brokers back.",
)
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _row(
    20,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    RETRIABLE,
    "Replicas fell out of sync while the records were being stored: bring the brokers back.",
    in_doubt=True,
)
INVALID_REQUIRED_ACKS = _row(21, "INVALID_REQUIRED_ACKS", OTHER, "acks must be 0, 1 or all.")
ILLEGAL_GENERATION = _row(
    22,
    "ILLEGAL_GENERATION",
    OTHER,
    "The consumer group has rebalanced; abort, and begin again from the last committed offsets.",
)
INCONSISTENT_GROUP_PROTOCOL = _row(23, "INCONSISTENT_GROUP_PROTOCOL")
INVALID_GROUP_ID = _row(24, "INVALID_GROUP_ID")
UNKNOWN_MEMBER_ID = _row(
    25,
    "UNKNOWN_MEMBER_ID",
    OTHER,
    "The consumer group has rebalanced; abort, and begin again from the last committed offsets.",
)
INVALID_SESSION_TIMEOUT = _row(26, "INVALID_SESSION_TIMEOUT")
REBALANCE_IN_PROGRESS = _row(27, "REBALANCE_IN_PROGRESS")
INVALID_COMMIT_OFFSET_SIZE = _row(28, "INVALID_COMMIT_OFFSET_SIZE")
TOPIC_AUTHORIZATION_FAILED = _row(
    29, "TOPIC_AUTHORIZATION_FAILED", OTHER, "Grant this user the right Write (and Describe) on the topic."
)
GROUP_AUTHORIZATION_FAILED = _row(
    30, "GROUP_AUTHORIZATION_FAILED", OTHER, "Grant this user the right Read on the consumer group."
)
CLUSTER_AUTHORIZATION_FAILED = _row(
    31,
    "CLUSTER_AUTHORIZATION_FAILED",
    FATAL,
    "Grant this user IdempotentWrite on the cluster (before Kafka 2.8), or set enable.idempotence=false.",
)
INVALID_TIMESTAMP = _row(
    32,
    "INVALID_TIMESTAMP",
    OTHER,
    "A timestamp is further from the broker's clock than the topic's message.timestamp.*.max.ms allow.",
)
UNSUPPORTED_SASL_MECHANISM = _row(
    33, "UNSUPPORTED_SASL_MECHANISM", OTHER, "Choose a sasl.mechanism that the broker's listener has enabled."
)
ILLEGAL_SASL_STATE = _row(
    34,
    "ILLEGAL_SASL_STATE",
    OTHER,
    "The listener expects no SASL now: check security.protocol against the listener's port.",
)
UNSUPPORTED_VERSION = _row(
    35,
    "UNSUPPORTED_VERSION",
    FATAL,
    "The broker does not speak the version that is needed; upgrade it, or switch off the feature.",
)
TOPIC_ALREADY_EXISTS = _row(36, "TOPIC_ALREADY_EXISTS")
INVALID_PARTITIONS = _row(37, "INVALID_PARTITIONS")
INVALID_REPLICATION_FACTOR = _row(
    38, "INVALID_REPLICATION_FACTOR", OTHER, "The replication factor exceeds the number of brokers."
)
INVALID_REPLICA_ASSIGNMENT = _row(39, "INVALID_REPLICA_ASSIGNMENT")
INVALID_CONFIG = _row(40, "INVALID_CONFIG", OTHER, "The broker refused a setting; its message names it.")
NOT_CONTROLLER = _row(41, "NOT_CONTROLLER", RETRIABLE, "The controller has moved.")
INVALID_REQUEST = _row(42, "INVALID_REQUEST", OTHER, "The broker could not read the request; its own log says why.")
UNSUPPORTED_FOR_MESSAGE_FORMAT = _row(
    43,
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    OTHER,
    "The topic has a record format older than 0.11; raise its message.format.version.",
)
POLICY_VIOLATION = _row(44, "POLICY_VIOLATION", OTHER, "A policy of the cluster forbids it; ask its administrators.")
OUT_OF_ORDER_SEQUENCE_NUMBER = _row(
    45,
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    OTHER,
    "The broker lacks the records before these: an unclean leader election may have lost them.",
)
DUPLICATE_SEQUENCE_NUMBER = _row(46, "DUPLICATE_SEQUENCE_NUMBER", OTHER, "The broker has these records already.")
INVALID_PRODUCER_EPOCH = _row(
    47,
    "INVALID_PRODUCER_EPOCH",
    OTHER,
    "Another producer with the same transactional.id may have started, or a transaction has timed out.",
)
INVALID_TXN_STATE = _row(
    48,
    "INVALID_TXN_STATE",
    OTHER,
    "The transaction is no longer open: it may have exceeded transaction.timeout.ms.",
)
INVALID_PRODUCER_ID_MAPPING = _row(
    49,
    "INVALID_PRODUCER_ID_MAPPING",
    FATAL,
    "The transactional.id has expired at the broker (transactional.id.expiration.ms); start a new producer.",
)
INVALID_TRANSACTION_TIMEOUT = _row(
    50, "INVALID_TRANSACTION_TIMEOUT", FATAL, "transaction.timeout.ms exceeds the broker's transaction.max.timeout.ms."
)
CONCURRENT_TRANSACTIONS = _row(
    51, "CONCURRENT_TRANSACTIONS", RETRIABLE, "The transaction before this one is still being completed."
)
TRANSACTION_COORDINATOR_FENCED = _row(52, "TRANSACTION_COORDINATOR_FENCED")
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _row(
    53,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    FATAL,
    "Grant this user the rights Write and Describe on the transactional id.",
)
SECURITY_DISABLED = _row(54, "SECURITY_DISABLED")
OPERATION_NOT_ATTEMPTED = _row(
    55,
    "OPERATION_NOT_ATTEMPTED",
    OTHER,
    "Another partition of the same request was refused; that one has the reason.",
)
KAFKA_STORAGE_ERROR = _row(
    56,
    "KAFKA_STORAGE_ERROR",
    STALE,
    "A disk of the broker has failed or is full: look at the broker's log directories.",
)
LOG_DIR_NOT_FOUND = _row(57, "LOG_DIR_NOT_FOUND")
SASL_AUTHENTICATION_FAILED = _row(
    58,
    "SASL_AUTHENTICATION_FAILED",
    OTHER,
    "User name, password or token are wrong, or the user does not exist at the broker.",
)
UNKNOWN_PRODUCER_ID = _row(
    59, "UNKNOWN_PRODUCER_ID", OTHER, "The broker has forgotten this producer: retention, or producer.id.expiration.ms."
)
REASSIGNMENT_IN_PROGRESS = _row(60, "REASSIGNMENT_IN_PROGRESS")
DELEGATION_TOKEN_AUTH_DISABLED = _row(
    61, "DELEGATION_TOKEN_AUTH_DISABLED", OTHER, "Delegation tokens are not enabled at the broker."
)
DELEGATION_TOKEN_NOT_FOUND = _row(
    62, "DELEGATION_TOKEN_NOT_FOUND", OTHER, "The delegation token does not exist, or has expired and was removed."
)
DELEGATION_TOKEN_OWNER_MISMATCH = _row(63, "DELEGATION_TOKEN_OWNER_MISMATCH")
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _row(64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED")
DELEGATION_TOKEN_AUTHORIZATION_FAILED = _row(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED")
DELEGATION_TOKEN_EXPIRED = _row(66, "DELEGATION_TOKEN_EXPIRED", OTHER, "Obtain a new delegation token.")
INVALID_PRINCIPAL_TYPE = _row(67, "INVALID_PRINCIPAL_TYPE")
NON_EMPTY_GROUP = _row(68, "NON_EMPTY_GROUP")
GROUP_ID_NOT_FOUND = _row(69, "GROUP_ID_NOT_FOUND")
FETCH_SESSION_ID_NOT_FOUND = _row(70, "FETCH_SESSION_ID_NOT_FOUND", RETRIABLE)
INVALID_FETCH_SESSION_EPOCH = _row(71, "INVALID_FETCH_SESSION_EPOCH", RETRIABLE)
LISTENER_NOT_FOUND = _row(
    72,
    "LISTENER_NOT_FOUND",
    STALE,
    "Every broker must offer the listener that clients connect to; the leader does not.",
)
TOPIC_DELETION_DISABLED = _row(73, "TOPIC_DELETION_DISABLED")
FENCED_LEADER_EPOCH = _row(74, "FENCED_LEADER_EPOCH", STALE, "The partition has a newer leader.")
UNKNOWN_LEADER_EPOCH = _row(
    75, "UNKNOWN_LEADER_EPOCH", RETRIABLE, "The broker has not heard of the newest leader yet; it will."
)
UNSUPPORTED_COMPRESSION_TYPE = _row(
    76, "UNSUPPORTED_COMPRESSION_TYPE", OTHER, "The broker is too old for this compression.type; zstd needs 2.1."
)
STALE_BROKER_EPOCH = _row(77, "STALE_BROKER_EPOCH")
OFFSET_NOT_AVAILABLE = _row(78, "OFFSET_NOT_AVAILABLE", RETRIABLE)
MEMBER_ID_REQUIRED = _row(79, "MEMBER_ID_REQUIRED")
PREFERRED_LEADER_NOT_AVAILABLE = _row(80, "PREFERRED_LEADER_NOT_AVAILABLE", STALE)
GROUP_MAX_SIZE_REACHED = _row(81, "GROUP_MAX_SIZE_REACHED")
FENCED_INSTANCE_ID = _row(82, "FENCED_INSTANCE_ID", OTHER, "Another member with the same group.instance.id has joined.")
ELIGIBLE_LEADERS_NOT_AVAILABLE = _row(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", STALE)
ELECTION_NOT_NEEDED = _row(84, "ELECTION_NOT_NEEDED", STALE)
NO_REASSIGNMENT_IN_PROGRESS = _row(85, "NO_REASSIGNMENT_IN_PROGRESS")
GROUP_SUBSCRIBED_TO_TOPIC = _row(86, "GROUP_SUBSCRIBED_TO_TOPIC")
INVALID_RECORD = _row(
    87,
    "INVALID_RECORD",
    OTHER,
    "The broker refused records: a compacted topic needs keys, for one; its message may say more.",
)
UNSTABLE_OFFSET_COMMIT = _row(88, "UNSTABLE_OFFSET_COMMIT", RETRIABLE, "There are offsets in open transactions.")
THROTTLING_QUOTA_EXCEEDED = _row(
    89, "THROTTLING_QUOTA_EXCEEDED", RETRIABLE, "A quota for changes of topics is used up."
)
PRODUCER_FENCED = _row(
    90, "PRODUCER_FENCED", FATAL, "Another producer with the same transactional.id has taken over; this one must stop."
)
RESOURCE_NOT_FOUND = _row(91, "RESOURCE_NOT_FOUND")
DUPLICATE_RESOURCE = _row(92, "DUPLICATE_RESOURCE")
UNACCEPTABLE_CREDENTIAL = _row(93, "UNACCEPTABLE_CREDENTIAL")
INCONSISTENT_VOTER_SET = _row(94, "INCONSISTENT_VOTER_SET")
INVALID_UPDATE_VERSION = _row(95, "INVALID_UPDATE_VERSION")
FEATURE_UPDATE_FAILED = _row(96, "FEATURE_UPDATE_FAILED")
PRINCIPAL_DESERIALIZATION_FAILURE = _row(
    97, "PRINCIPAL_DESERIALIZATION_FAILURE", OTHER, "Brokers failed to forward it; look at their logs."
)
SNAPSHOT_NOT_FOUND = _row(98, "SNAPSHOT_NOT_FOUND")
POSITION_OUT_OF_RANGE = _row(99, "POSITION_OUT_OF_RANGE")
UNKNOWN_TOPIC_ID = _row(
    100, "UNKNOWN_TOPIC_ID", STALE, "The topic was deleted, or deleted and created anew; its metadata is looked up."
)
DUPLICATE_BROKER_REGISTRATION = _row(101, "DUPLICATE_BROKER_REGISTRATION")
BROKER_ID_NOT_REGISTERED = _row(102, "BROKER_ID_NOT_REGISTERED")
INCONSISTENT_TOPIC_ID = _row(
    103, "INCONSISTENT_TOPIC_ID", STALE, "The topic was deleted and created anew; its metadata is looked up."
)
INCONSISTENT_CLUSTER_ID = _row(
    104, "INCONSISTENT_CLUSTER_ID", OTHER, "The bootstrap servers belong to another cluster."
)
TRANSACTIONAL_ID_NOT_FOUND = _row(
    105, "TRANSACTIONAL_ID_NOT_FOUND", OTHER, "The broker knows no such transactional id."
)
FETCH_SESSION_TOPIC_ID_ERROR = _row(106, "FETCH_SESSION_TOPIC_ID_ERROR", RETRIABLE)
INELIGIBLE_REPLICA = _row(107, "INELIGIBLE_REPLICA")
NEW_LEADER_ELECTED = _row(108, "NEW_LEADER_ELECTED")
OFFSET_MOVED_TO_TIERED_STORAGE = _row(109, "OFFSET_MOVED_TO_TIERED_STORAGE")
FENCED_MEMBER_EPOCH = _row(110, "FENCED_MEMBER_EPOCH")
UNRELEASED_INSTANCE_ID = _row(111, "UNRELEASED_INSTANCE_ID")
UNSUPPORTED_ASSIGNOR = _row(112, "UNSUPPORTED_ASSIGNOR")
STALE_MEMBER_EPOCH = _row(113, "STALE_MEMBER_EPOCH")
MISMATCHED_ENDPOINT_TYPE = _row(114, "MISMATCHED_ENDPOINT_TYPE")
UNSUPPORTED_ENDPOINT_TYPE = _row(115, "UNSUPPORTED_ENDPOINT_TYPE")
UNKNOWN_CONTROLLER_ID = _row(116, "UNKNOWN_CONTROLLER_ID")
UNKNOWN_SUBSCRIPTION_ID = _row(117, "UNKNOWN_SUBSCRIPTION_ID")
TELEMETRY_TOO_LARGE = _row(118, "TELEMETRY_TOO_LARGE")
INVALID_REGISTRATION = _row(119, "INVALID_REGISTRATION")
TRANSACTION_ABORTABLE = _row(
    120, "TRANSACTION_ABORTABLE", OTHER, "The transaction cannot be completed; abort it and try again."
)
INVALID_RECORD_STATE = _row(121, "INVALID_RECORD_STATE")
SHARE_SESSION_NOT_FOUND = _row(122, "SHARE_SESSION_NOT_FOUND", RETRIABLE)
INVALID_SHARE_SESSION_EPOCH = _row(123, "INVALID_SHARE_SESSION_EPOCH", RETRIABLE)
FENCED_STATE_EPOCH = _row(124, "FENCED_STATE_EPOCH")
INVALID_VOTER_KEY = _row(125, "INVALID_VOTER_KEY")
DUPLICATE_VOTER = _row(126, "DUPLICATE_VOTER")
VOTER_NOT_FOUND = _row(127, "VOTER_NOT_FOUND")
INVALID_REGULAR_EXPRESSION = _row(128, "INVALID_REGULAR_EXPRESSION")
REBOOTSTRAP_REQUIRED = _row(
    129, "REBOOTSTRAP_REQUIRED", OTHER, "The cluster asks its clients to start over from bootstrap.servers."
)
STREAMS_INVALID_TOPOLOGY = _row(130, "STREAMS_INVALID_TOPOLOGY")
STREAMS_INVALID_TOPOLOGY_EPOCH = _row(131, "STREAMS_INVALID_TOPOLOGY_EPOCH")
STREAMS_TOPOLOGY_FENCED = _row(132, "STREAMS_TOPOLOGY_FENCED")
SHARE_SESSION_LIMIT_REACHED = _row(133, "SHARE_SESSION_LIMIT_REACHED", RETRIABLE)


_KINDS: dict[int, type[BrokerError]] = {
    TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: AuthorizationError,
    PRODUCER_FENCED: ProducerFencedError,
}
