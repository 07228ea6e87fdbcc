"""Kafka's error codes, as a table for the client, the producer and the embedded broker.

Codes, names, `retriable` and `requires_metadata_refresh` are those of Kafka 4.3. The meaning of some errors depends on
the request and its history. sending/outcome.py decides those cases for record batches, and the verdict tables in
requests/ decide them for all other requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.errors import AuthorizationError, BrokerError, ProducerFencedError


class ErrorKind(Enum):
    """Kinds of errors, by the action that a client takes after the error."""

    OTHER = "fail the request"
    RETRIABLE = "retry the request"
    STALE = "refresh the metadata, which may be stale, and retry"
    FATAL = "stop the producer, which cannot be used any longer"


OTHER, RETRIABLE, STALE, FATAL = ErrorKind


@dataclass(frozen=True)
class ErrorCode:
    """A Kafka error code and its consequences for a client."""

    code: int
    name: str
    kind: ErrorKind = OTHER
    in_doubt: bool = False
    """Whether the broker may have stored the records despite the error."""
    advice: str = ""
    """Sentences about the cause and the remedy, if known. They must not say whether the records are stored, because an
    earlier attempt may have stored them."""

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in (RETRIABLE, STALE)

    @property
    def requires_metadata_refresh(self) -> bool:
        return self.kind is STALE

    @property
    def fatal(self) -> bool:
        return self.kind is FATAL


ERROR_CODES: dict[int, ErrorCode] = {}
"""All rows of the table, by code."""


def _define_error(code: int, name: str, kind: ErrorKind = OTHER, advice: str = "", *, in_doubt: bool = False) -> int:
    """Add an error to the table and return its code."""
    if code in ERROR_CODES or name in globals():  # each row has a module constant of the same name
        raise ValueError(f"Two rows of the table have the code {code} or the name {name}. Remove one of them.")
    ERROR_CODES[code] = ErrorCode(code, name, kind, in_doubt, advice)
    return code


def lookup_error_code(code: int) -> ErrorCode:
    """Return the row for a code. Unknown codes get a row that is not retriable and leaves the records in doubt."""
    return ERROR_CODES.get(code) or ErrorCode(
        code,
        f"UNKNOWN_{code}",
        in_doubt=True,
        advice="This library does not know the error; the broker may be newer. Upgrade the library, or look up the "
        "code in Kafka's documentation.",
    )


def build_broker_error(
    code: int,
    context: str = "",
    advice: str | None = None,
    broker_message: str | None = None,
    *,
    destination: str = "",
) -> BrokerError:
    """Build the exception for an error code in a response.

    `context`: the failed operation, which begins the message.
    `advice`: replaces the table's advice.
    `broker_message`: the error message in the response.
    `destination`: the topic or topic-partition of the failed records.
    """
    row = lookup_error_code(code)
    error_type = _ERROR_TYPES.get(code, BrokerError)
    broker_sentence = f"The broker's message: {broker_message}" if broker_message else ""
    explanation = " ".join(filter(None, [advice or row.advice, broker_sentence]))
    message = f"{context}: {row.name} ({code})" if context else f"{row.name} ({code})"
    if explanation:
        message = f"{message}. {explanation}"
    return error_type(message, code=code, name=row.name, destination=destination)


UNKNOWN_SERVER_ERROR = _define_error(
    -1,
    "UNKNOWN_SERVER_ERROR",
    OTHER,
    "The broker failed with an unexpected error. See the broker's log.",
    in_doubt=True,
)
NONE = _define_error(0, "NONE")
OFFSET_OUT_OF_RANGE = _define_error(1, "OFFSET_OUT_OF_RANGE")
CORRUPT_MESSAGE = _define_error(
    2,
    "CORRUPT_MESSAGE",
    RETRIABLE,
    "The batch arrived with a wrong checksum. Look for a faulty proxy, network card or memory on the way.",
)
UNKNOWN_TOPIC_OR_PARTITION = _define_error(
    3,
    "UNKNOWN_TOPIC_OR_PARTITION",
    STALE,
    "Create the topic or correct its name. It takes a moment for all brokers to learn of a new topic.",
)
INVALID_FETCH_SIZE = _define_error(4, "INVALID_FETCH_SIZE")
LEADER_NOT_AVAILABLE = _define_error(
    5,
    "LEADER_NOT_AVAILABLE",
    STALE,
    "The partition has no leader yet. If the error persists, too few of its replicas are alive.",
)
NOT_LEADER_OR_FOLLOWER = _define_error(
    6, "NOT_LEADER_OR_FOLLOWER", STALE, "The partition has a new leader, which is looked up."
)
REQUEST_TIMED_OUT = _define_error(
    7,
    "REQUEST_TIMED_OUT",
    RETRIABLE,
    "The replicas did not acknowledge the request within its timeout. Check that all brokers are running.",
    in_doubt=True,
)
BROKER_NOT_AVAILABLE = _define_error(8, "BROKER_NOT_AVAILABLE", OTHER, "The broker is not running or not reachable.")
REPLICA_NOT_AVAILABLE = _define_error(
    9, "REPLICA_NOT_AVAILABLE", STALE, "A replica is not available. Check that all brokers are running."
)
MESSAGE_TOO_LARGE = _define_error(
    10,
    "MESSAGE_TOO_LARGE",
    OTHER,
    "Increase the topic's max.message.bytes, or write smaller records and batches (batch.size).",
)
STALE_CONTROLLER_EPOCH = _define_error(11, "STALE_CONTROLLER_EPOCH")
OFFSET_METADATA_TOO_LARGE = _define_error(12, "OFFSET_METADATA_TOO_LARGE")
NETWORK_EXCEPTION = _define_error(
    13,
    "NETWORK_EXCEPTION",
    STALE,
    "The connection was lost before the response arrived.",
    in_doubt=True,
)
COORDINATOR_LOAD_IN_PROGRESS = _define_error(
    14, "COORDINATOR_LOAD_IN_PROGRESS", RETRIABLE, "The coordinator is still loading its state after a restart."
)
COORDINATOR_NOT_AVAILABLE = _define_error(
    15,
    "COORDINATOR_NOT_AVAILABLE",
    RETRIABLE,
    "Check that the internal topics __transaction_state and __consumer_offsets are healthy.",
)
NOT_COORDINATOR = _define_error(16, "NOT_COORDINATOR", RETRIABLE, "The coordinator has moved.")
INVALID_TOPIC_EXCEPTION = _define_error(
    17,
    "INVALID_TOPIC_EXCEPTION",
    OTHER,
    "A topic name has at most 249 letters, digits, '.', '_' and '-'. Internal topics cannot be written.",
)
RECORD_LIST_TOO_LARGE = _define_error(
    18,
    "RECORD_LIST_TOO_LARGE",
    OTHER,
    "The batch exceeds the topic's segment.bytes. Decrease batch.size or increase segment.bytes.",
)
NOT_ENOUGH_REPLICAS = _define_error(
    19,
    "NOT_ENOUGH_REPLICAS",
    RETRIABLE,
    "Fewer replicas are in sync than min.insync.replicas requires. Check the brokers that host the replicas.",
)
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _define_error(
    20,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    RETRIABLE,
    "Replicas fell out of sync while the records were stored. Check the brokers that host the replicas.",
    in_doubt=True,
)
INVALID_REQUIRED_ACKS = _define_error(
    21, "INVALID_REQUIRED_ACKS", OTHER, "The broker supports only acks=0, acks=1 and acks=all."
)
ILLEGAL_GENERATION = _define_error(
    22,
    "ILLEGAL_GENERATION",
    OTHER,
    "The consumer group has rebalanced. Abort the transaction and resume from the last committed offsets.",
)
INCONSISTENT_GROUP_PROTOCOL = _define_error(23, "INCONSISTENT_GROUP_PROTOCOL")
INVALID_GROUP_ID = _define_error(24, "INVALID_GROUP_ID")
UNKNOWN_MEMBER_ID = _define_error(
    25,
    "UNKNOWN_MEMBER_ID",
    OTHER,
    "The consumer group has rebalanced. Abort the transaction and resume from the last committed offsets.",
)
INVALID_SESSION_TIMEOUT = _define_error(26, "INVALID_SESSION_TIMEOUT")
REBALANCE_IN_PROGRESS = _define_error(27, "REBALANCE_IN_PROGRESS")
INVALID_COMMIT_OFFSET_SIZE = _define_error(28, "INVALID_COMMIT_OFFSET_SIZE")
TOPIC_AUTHORIZATION_FAILED = _define_error(
    29, "TOPIC_AUTHORIZATION_FAILED", OTHER, "Grant this user the Write and Describe permissions on the topic."
)
GROUP_AUTHORIZATION_FAILED = _define_error(
    30, "GROUP_AUTHORIZATION_FAILED", OTHER, "Grant this user the Read permission on the consumer group."
)
CLUSTER_AUTHORIZATION_FAILED = _define_error(
    31,
    "CLUSTER_AUTHORIZATION_FAILED",
    FATAL,
    # KIP-679: from Kafka 2.8 on, a user who may write to any topic may also obtain a producer id.
    "Grant this user the Write permission on the topic (before Kafka 2.8, IdempotentWrite on the cluster), or set "
    "enable.idempotence=false and accept duplicates.",
)
INVALID_TIMESTAMP = _define_error(
    32,
    "INVALID_TIMESTAMP",
    OTHER,
    "A timestamp differs from the broker's clock by more than the topic's message.timestamp.*.max.ms allows.",
)
UNSUPPORTED_SASL_MECHANISM = _define_error(
    33, "UNSUPPORTED_SASL_MECHANISM", OTHER, "Choose a sasl.mechanism that the broker's listener has enabled."
)
ILLEGAL_SASL_STATE = _define_error(
    34,
    "ILLEGAL_SASL_STATE",
    OTHER,
    "The listener does not use SASL. Check that security.protocol matches the port.",
)
UNSUPPORTED_VERSION = _define_error(
    35,
    "UNSUPPORTED_VERSION",
    FATAL,
    "The broker does not support the required version of the API. Upgrade the broker or disable the feature.",
)
TOPIC_ALREADY_EXISTS = _define_error(36, "TOPIC_ALREADY_EXISTS")
INVALID_PARTITIONS = _define_error(37, "INVALID_PARTITIONS")
INVALID_REPLICATION_FACTOR = _define_error(
    38,
    "INVALID_REPLICATION_FACTOR",
    OTHER,
    "The replication factor exceeds the number of brokers. Decrease it or add brokers.",
)
INVALID_REPLICA_ASSIGNMENT = _define_error(39, "INVALID_REPLICA_ASSIGNMENT")
INVALID_CONFIG = _define_error(40, "INVALID_CONFIG", OTHER, "The broker rejected a setting, which its message names.")
NOT_CONTROLLER = _define_error(41, "NOT_CONTROLLER", RETRIABLE, "The controller has moved.")
INVALID_REQUEST = _define_error(
    42, "INVALID_REQUEST", OTHER, "The broker rejected the request as invalid. See the broker's log."
)
UNSUPPORTED_FOR_MESSAGE_FORMAT = _define_error(
    43,
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    OTHER,
    "The topic has a record format from before Kafka 0.11. Increase its message.format.version.",
)
POLICY_VIOLATION = _define_error(
    44, "POLICY_VIOLATION", OTHER, "A cluster policy forbids the request. Ask the cluster's administrator."
)
OUT_OF_ORDER_SEQUENCE_NUMBER = _define_error(
    45,
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    OTHER,
    "The broker lacks the records before these. An unclean leader election may have lost them, or the topic was "
    "recreated.",
)
DUPLICATE_SEQUENCE_NUMBER = _define_error(
    46, "DUPLICATE_SEQUENCE_NUMBER", OTHER, "The broker has already stored these records."
)
INVALID_PRODUCER_EPOCH = _define_error(
    47,
    "INVALID_PRODUCER_EPOCH",
    OTHER,
    "Another producer with the same transactional.id may have started, or a transaction has timed out.",
)
INVALID_TXN_STATE = _define_error(
    48,
    "INVALID_TXN_STATE",
    OTHER,
    "The transaction is no longer open. It may have exceeded transaction.timeout.ms.",
)
INVALID_PRODUCER_ID_MAPPING = _define_error(
    49,
    "INVALID_PRODUCER_ID_MAPPING",
    FATAL,
    "The transactional.id has expired at the broker (transactional.id.expiration.ms). Start a new producer.",
)
INVALID_TRANSACTION_TIMEOUT = _define_error(
    50,
    "INVALID_TRANSACTION_TIMEOUT",
    FATAL,
    "transaction.timeout.ms exceeds the broker's transaction.max.timeout.ms. Decrease it.",
)
CONCURRENT_TRANSACTIONS = _define_error(
    51, "CONCURRENT_TRANSACTIONS", RETRIABLE, "The previous transaction is not complete yet."
)
TRANSACTION_COORDINATOR_FENCED = _define_error(52, "TRANSACTION_COORDINATOR_FENCED")
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _define_error(
    53,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    FATAL,
    "Grant this user the Write and Describe permissions on the transactional id.",
)
SECURITY_DISABLED = _define_error(54, "SECURITY_DISABLED")
OPERATION_NOT_ATTEMPTED = _define_error(
    55,
    "OPERATION_NOT_ATTEMPTED",
    OTHER,
    "Another partition of the same request was rejected. Its error has the reason.",
)
KAFKA_STORAGE_ERROR = _define_error(
    56,
    "KAFKA_STORAGE_ERROR",
    STALE,
    "One of the broker's disks has failed or is full. Check the broker's log directories.",
)
LOG_DIR_NOT_FOUND = _define_error(57, "LOG_DIR_NOT_FOUND")
SASL_AUTHENTICATION_FAILED = _define_error(
    58,
    "SASL_AUTHENTICATION_FAILED",
    OTHER,
    "The user name, password or token is wrong, or the broker does not know the user.",
)
UNKNOWN_PRODUCER_ID = _define_error(
    59,
    "UNKNOWN_PRODUCER_ID",
    OTHER,
    "The broker has forgotten this producer: its last records are older than producer.id.expiration.ms, or an old "
    "broker has deleted them.",
)
REASSIGNMENT_IN_PROGRESS = _define_error(60, "REASSIGNMENT_IN_PROGRESS")
DELEGATION_TOKEN_AUTH_DISABLED = _define_error(
    61, "DELEGATION_TOKEN_AUTH_DISABLED", OTHER, "Delegation tokens are not enabled on the broker."
)
DELEGATION_TOKEN_NOT_FOUND = _define_error(
    62, "DELEGATION_TOKEN_NOT_FOUND", OTHER, "The delegation token does not exist, or it has expired and was removed."
)
DELEGATION_TOKEN_OWNER_MISMATCH = _define_error(63, "DELEGATION_TOKEN_OWNER_MISMATCH")
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _define_error(64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED")
DELEGATION_TOKEN_AUTHORIZATION_FAILED = _define_error(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED")
DELEGATION_TOKEN_EXPIRED = _define_error(66, "DELEGATION_TOKEN_EXPIRED", OTHER, "Obtain a new delegation token.")
INVALID_PRINCIPAL_TYPE = _define_error(67, "INVALID_PRINCIPAL_TYPE")
NON_EMPTY_GROUP = _define_error(68, "NON_EMPTY_GROUP")
GROUP_ID_NOT_FOUND = _define_error(69, "GROUP_ID_NOT_FOUND")
FETCH_SESSION_ID_NOT_FOUND = _define_error(70, "FETCH_SESSION_ID_NOT_FOUND", RETRIABLE)
INVALID_FETCH_SESSION_EPOCH = _define_error(71, "INVALID_FETCH_SESSION_EPOCH", RETRIABLE)
LISTENER_NOT_FOUND = _define_error(
    72,
    "LISTENER_NOT_FOUND",
    STALE,
    "The leader lacks the listener that the client uses. Configure it on all brokers.",
)
TOPIC_DELETION_DISABLED = _define_error(73, "TOPIC_DELETION_DISABLED")
FENCED_LEADER_EPOCH = _define_error(74, "FENCED_LEADER_EPOCH", STALE, "The partition has a newer leader.")
UNKNOWN_LEADER_EPOCH = _define_error(
    75, "UNKNOWN_LEADER_EPOCH", RETRIABLE, "The broker does not know the current leader epoch yet."
)
UNSUPPORTED_COMPRESSION_TYPE = _define_error(
    76,
    "UNSUPPORTED_COMPRESSION_TYPE",
    OTHER,
    "The broker is too old for this compression codec; zstd requires Kafka 2.1.",
)
STALE_BROKER_EPOCH = _define_error(77, "STALE_BROKER_EPOCH")
OFFSET_NOT_AVAILABLE = _define_error(78, "OFFSET_NOT_AVAILABLE", RETRIABLE)
MEMBER_ID_REQUIRED = _define_error(79, "MEMBER_ID_REQUIRED")
PREFERRED_LEADER_NOT_AVAILABLE = _define_error(80, "PREFERRED_LEADER_NOT_AVAILABLE", STALE)
GROUP_MAX_SIZE_REACHED = _define_error(81, "GROUP_MAX_SIZE_REACHED")
FENCED_INSTANCE_ID = _define_error(
    82, "FENCED_INSTANCE_ID", OTHER, "Another member with the same group.instance.id has joined."
)
ELIGIBLE_LEADERS_NOT_AVAILABLE = _define_error(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", STALE)
ELECTION_NOT_NEEDED = _define_error(84, "ELECTION_NOT_NEEDED", STALE)
NO_REASSIGNMENT_IN_PROGRESS = _define_error(85, "NO_REASSIGNMENT_IN_PROGRESS")
GROUP_SUBSCRIBED_TO_TOPIC = _define_error(86, "GROUP_SUBSCRIBED_TO_TOPIC")
INVALID_RECORD = _define_error(
    87,
    "INVALID_RECORD",
    OTHER,
    "The broker rejected records, for example records without a key for a compacted topic. See its message.",
)
UNSTABLE_OFFSET_COMMIT = _define_error(
    88, "UNSTABLE_OFFSET_COMMIT", RETRIABLE, "Some offsets belong to open transactions."
)
THROTTLING_QUOTA_EXCEEDED = _define_error(
    89, "THROTTLING_QUOTA_EXCEEDED", RETRIABLE, "The quota for topic changes is exhausted."
)
PRODUCER_FENCED = _define_error(
    90, "PRODUCER_FENCED", FATAL, "Another producer with the same transactional.id has started. Stop this one."
)
RESOURCE_NOT_FOUND = _define_error(91, "RESOURCE_NOT_FOUND")
DUPLICATE_RESOURCE = _define_error(92, "DUPLICATE_RESOURCE")
UNACCEPTABLE_CREDENTIAL = _define_error(93, "UNACCEPTABLE_CREDENTIAL")
INCONSISTENT_VOTER_SET = _define_error(94, "INCONSISTENT_VOTER_SET")
INVALID_UPDATE_VERSION = _define_error(95, "INVALID_UPDATE_VERSION")
FEATURE_UPDATE_FAILED = _define_error(96, "FEATURE_UPDATE_FAILED")
PRINCIPAL_DESERIALIZATION_FAILURE = _define_error(
    97, "PRINCIPAL_DESERIALIZATION_FAILURE", OTHER, "A broker could not forward the request. See the brokers' logs."
)
SNAPSHOT_NOT_FOUND = _define_error(98, "SNAPSHOT_NOT_FOUND")
POSITION_OUT_OF_RANGE = _define_error(99, "POSITION_OUT_OF_RANGE")
UNKNOWN_TOPIC_ID = _define_error(
    100, "UNKNOWN_TOPIC_ID", STALE, "The topic was deleted, or deleted and recreated. Its metadata is looked up."
)
DUPLICATE_BROKER_REGISTRATION = _define_error(101, "DUPLICATE_BROKER_REGISTRATION")
BROKER_ID_NOT_REGISTERED = _define_error(102, "BROKER_ID_NOT_REGISTERED")
INCONSISTENT_TOPIC_ID = _define_error(
    103, "INCONSISTENT_TOPIC_ID", STALE, "The topic was deleted and recreated. Its metadata is looked up."
)
INCONSISTENT_CLUSTER_ID = _define_error(
    104, "INCONSISTENT_CLUSTER_ID", OTHER, "The bootstrap servers belong to another cluster."
)
TRANSACTIONAL_ID_NOT_FOUND = _define_error(
    105, "TRANSACTIONAL_ID_NOT_FOUND", OTHER, "The broker does not know the transactional id."
)
FETCH_SESSION_TOPIC_ID_ERROR = _define_error(106, "FETCH_SESSION_TOPIC_ID_ERROR", RETRIABLE)
INELIGIBLE_REPLICA = _define_error(107, "INELIGIBLE_REPLICA")
NEW_LEADER_ELECTED = _define_error(108, "NEW_LEADER_ELECTED")
OFFSET_MOVED_TO_TIERED_STORAGE = _define_error(109, "OFFSET_MOVED_TO_TIERED_STORAGE")
FENCED_MEMBER_EPOCH = _define_error(110, "FENCED_MEMBER_EPOCH")
UNRELEASED_INSTANCE_ID = _define_error(111, "UNRELEASED_INSTANCE_ID")
UNSUPPORTED_ASSIGNOR = _define_error(112, "UNSUPPORTED_ASSIGNOR")
STALE_MEMBER_EPOCH = _define_error(113, "STALE_MEMBER_EPOCH")
MISMATCHED_ENDPOINT_TYPE = _define_error(114, "MISMATCHED_ENDPOINT_TYPE")
UNSUPPORTED_ENDPOINT_TYPE = _define_error(115, "UNSUPPORTED_ENDPOINT_TYPE")
UNKNOWN_CONTROLLER_ID = _define_error(116, "UNKNOWN_CONTROLLER_ID")
UNKNOWN_SUBSCRIPTION_ID = _define_error(117, "UNKNOWN_SUBSCRIPTION_ID")
TELEMETRY_TOO_LARGE = _define_error(118, "TELEMETRY_TOO_LARGE")
INVALID_REGISTRATION = _define_error(119, "INVALID_REGISTRATION")
TRANSACTION_ABORTABLE = _define_error(
    120, "TRANSACTION_ABORTABLE", OTHER, "The transaction cannot be completed. Abort it and retry."
)
INVALID_RECORD_STATE = _define_error(121, "INVALID_RECORD_STATE")
SHARE_SESSION_NOT_FOUND = _define_error(122, "SHARE_SESSION_NOT_FOUND", RETRIABLE)
INVALID_SHARE_SESSION_EPOCH = _define_error(123, "INVALID_SHARE_SESSION_EPOCH", RETRIABLE)
FENCED_STATE_EPOCH = _define_error(124, "FENCED_STATE_EPOCH")
INVALID_VOTER_KEY = _define_error(125, "INVALID_VOTER_KEY")
DUPLICATE_VOTER = _define_error(126, "DUPLICATE_VOTER")
VOTER_NOT_FOUND = _define_error(127, "VOTER_NOT_FOUND")
INVALID_REGULAR_EXPRESSION = _define_error(128, "INVALID_REGULAR_EXPRESSION")
REBOOTSTRAP_REQUIRED = _define_error(
    129, "REBOOTSTRAP_REQUIRED", OTHER, "The broker asks the client to bootstrap again from bootstrap.servers."
)
STREAMS_INVALID_TOPOLOGY = _define_error(130, "STREAMS_INVALID_TOPOLOGY")
STREAMS_INVALID_TOPOLOGY_EPOCH = _define_error(131, "STREAMS_INVALID_TOPOLOGY_EPOCH")
STREAMS_TOPOLOGY_FENCED = _define_error(132, "STREAMS_TOPOLOGY_FENCED")
SHARE_SESSION_LIMIT_REACHED = _define_error(133, "SHARE_SESSION_LIMIT_REACHED", RETRIABLE)

UNKNOWN_TOPIC_ERRORS = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})
"""Errors for a topic that does not exist, or that the broker does not know yet."""

_ERROR_TYPES: dict[int, type[BrokerError]] = {
    TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: AuthorizationError,
    PRODUCER_FENCED: ProducerFencedError,
}
