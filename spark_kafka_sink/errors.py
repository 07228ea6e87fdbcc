"""Every exception that the library raises, by who is wrong.

KafkaSinkError
├── ConfigurationError      the user's options (all faults of one configuration in one error)
│   └── MissingDependencyError  an optional package that the options ask for is not installed
├── DataError               the user's rows
│   ├── SchemaError             columns or types that cannot be written
│   ├── RecordTooLargeError     one record above max.request.size or above the broker's limit
│   └── InvalidRecordError      a record that no broker accepts: bad partition, timestamp, topic
├── DecodeError             bytes that are not what the protocol says (always the peer's fault)
│   └── UnsupportedFormatError  well-formed, but older or newer than what we speak
├── NetworkError            the network, or no process at the other end
│   └── DisconnectedError
├── AuthenticationError     credentials or certificates; final, never retried in a loop
│   └── TlsError
├── UnsupportedVersionError the broker is too old or too new for what was asked
├── BrokerError             the broker answered with an error code
│   └── AuthorizationError      an access right is missing; the message names the resource
├── SchemaRegistryError     the schema registry refused, or gave no answer
├── DeliveryError           a record was not acknowledged; the cause is chained
│   ├── DeliveryTimeoutError    delivery.timeout.ms passed
│   ├── BatchRefusedError       not stored, because others of its batch were refused; may be sent again
│   ├── TransactionAbortedError not sent, because its transaction was aborted
│   └── DeadLetterError         the record could not be written to the dead-letter topic either
├── TransactionError        a call about a transaction could not do what was asked
│   ├── TransactionAbortableError  abort this transaction, then begin another one
│   └── TransactionTimeoutError    no answer within max.block.ms: call it again to learn the outcome
├── ExactlyOnceError        going on would lose or double rows, so it was stopped
│   └── CommitLostError         a decided batch that cannot be committed as a whole any more
├── PreflightError          a check before the write failed; nothing was written
├── BufferExhaustedError    buffer.memory stayed full for max.block.ms
├── MetadataTimeoutError    a topic's partitions stayed unknown for max.block.ms
├── ProducerClosedError     send() after close()
├── ProducerFencedError     another producer took over this identity
└── IllegalStateError       us: a move that a state table forbids
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


class KafkaSinkError(Exception):
    """The root: catch this to catch everything that the library raises on purpose.

    Its text is the address of the connection, the message, the remedy, and whether the records may be stored.
    """

    address: str = ""
    """The address of the connection that failed."""
    remedy: str = ""
    """A sentence about what the caller can do, where that depends on what has been done since the error."""
    possibly_stored: bool = False
    """Whether the records may be stored although their delivery has failed."""

    def __init__(
        self, message: str = "", *, address: str = "", remedy: str = "", possibly_stored: bool = False
    ) -> None:
        super().__init__(message)
        # Attributes of the class stand for the defaults, so that a pickled error carries only what was set.
        if address:
            self.address = address
        if remedy:
            self.remedy = remedy
        if possibly_stored:
            self.possibly_stored = possibly_stored

    @property
    def text(self) -> str:
        """The text without the address."""
        doubt = "The records may be stored all the same." if self.possibly_stored else ""
        return " ".join(filter(None, (super().__str__(), self.remedy, doubt)))

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


def fresh(error: ErrorT) -> ErrorT:
    """A copy to raise: an exception that is raised twice shows both places, and keeps all that their frames hold."""
    another = copy(error)
    another.__cause__ = error.__cause__
    return another


class OptionSpelling(NamedTuple):
    """The way in which a user writes the names of options: `kafka.linger.ms` in a Spark job, for instance."""

    spell: Callable[[str], str] = str
    noun: str = ""
    """Stands before the option that a sentence is about, as in "Option 'topic' must be ..."."""

    def fill(self, text: str, values: Mapping[str, object] | None = None, prefix: str = "") -> str:
        """Return the text of an OptionFault with values and spelled names of options in place of its braces."""
        return _OptionFormatter(values or {}, lambda name: self.spell(prefix + name)).vformat(text, (), {})


class _OptionFormatter(string.Formatter):
    """Replaces `{name}` by a value, or else by the spelled name of an option, which may have dots."""

    def __init__(self, values: Mapping[str, object], spell: Callable[[str], str]) -> None:
        self._values = values
        self._spell = spell

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, str]:
        return self._values[field_name] if field_name in self._values else self._spell(field_name), field_name


PLAIN_SPELLING = OptionSpelling()


@dataclass(frozen=True)
class OptionFault:
    """A sentence about an option that is wrong. The names of options in it are spelled when it is rendered.

    `text` follows the name of the option. Braces hold the name of another option, or of one of `values`:

        OptionFault("delivery.timeout.ms", "must be at least {linger.ms}, which is {linger}.", {"linger": 100})
    """

    option: str
    text: str
    values: Mapping[str, object] = field(default_factory=dict)
    """Whatever comes from outside stands here and not in `text`, because it may have braces of its own."""
    prefix: str = ""
    """Begins the names of all options in the sentence: `schema.registry.` for the TLS options of a registry."""

    def render(self, spelling: OptionSpelling = PLAIN_SPELLING) -> str:
        """Return the sentence with the options as the user writes them."""
        option = spelling.spell(self.prefix + self.option)
        return f"{spelling.noun}{option} {spelling.fill(self.text, self.values, self.prefix)}"


class OptionFaults(list["str | OptionFault"]):
    """Collects everything that is wrong with the options of one configuration.

    A fault that belongs to no single option is a plain sentence.
    """

    def add(self, option: str, text: str, **values: object) -> None:
        self.append(OptionFault(option, text, values))

    def with_prefix(self, prefix: str) -> OptionFaults:
        """Return the same faults of options whose names begin with the prefix."""
        return OptionFaults(fault if isinstance(fault, str) else replace(fault, prefix=prefix) for fault in self)

    def render(self, spelling: OptionSpelling = PLAIN_SPELLING) -> list[str]:
        """Return the sentences with the options as the user writes them."""
        return [fault if isinstance(fault, str) else fault.render(spelling) for fault in self]


class ConfigurationError(KafkaSinkError, ValueError):
    """The options are wrong. `faults` has one sentence for each of them."""

    def __init__(self, faults: str | OptionFault | Sequence[str | OptionFault]) -> None:
        self._faults = (faults,) if isinstance(faults, str | OptionFault) else tuple(faults)
        self.faults = self.render(PLAIN_SPELLING)
        super().__init__("\n".join(self.faults))

    @property
    def unrendered_faults(self) -> OptionFaults:
        """All faults, for a caller that adds them to its own."""
        return OptionFaults(self._faults)

    def render(self, spelling: OptionSpelling) -> tuple[str, ...]:
        """Return the faults with the options as the user writes them."""
        return tuple(self.unrendered_faults.render(spelling))

    def with_prefix(self, prefix: str) -> ConfigurationError:
        """Return the same error about options whose names begin with the prefix."""
        return type(self)(self.unrendered_faults.with_prefix(prefix))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._faults,), self.__dict__


class MissingDependencyError(ConfigurationError):
    """An optional package that the options ask for is not installed."""


class DataError(KafkaSinkError):
    """The rows are wrong."""


class SchemaError(DataError, ValueError):
    """Columns or types that cannot be written."""


class RecordTooLargeError(DataError):
    """One record is larger than max.request.size, or than what the broker takes."""


class InvalidRecordError(DataError, ValueError):
    """A record that no broker would accept, or that a broker has refused by name (KIP-467)."""


class DecodeError(KafkaSinkError):
    """Bytes that are not what the protocol says."""


class UnsupportedFormatError(DecodeError):
    """Well-formed bytes in a format that we do not speak, such as message sets older than Kafka 0.11."""


class NetworkError(KafkaSinkError):
    """The connection failed, or no process listens at the other end."""


class DisconnectedError(NetworkError):
    """The connection ended before the answer came: the request may or may not have been carried out."""


class AuthenticationError(KafkaSinkError):
    """The broker or the client did not accept the other's identity. Final: trying again would not help."""


class TlsError(AuthenticationError):
    """The TLS handshake failed: an unknown certificate authority, a wrong name, an expired certificate."""


class ListenerMismatchError(AuthenticationError):
    """The listener expects no SASL, or offers other mechanisms. It has not asked for the credentials."""


class UnsupportedVersionError(KafkaSinkError):
    """The broker does not speak a version of an API that we need."""


class BrokerError(KafkaSinkError):
    """The broker answered with an error code. `code` is the number, `name` Kafka's name for it."""

    def __init__(self, message: str, *, code: int, name: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_broker_error, (type(self), self.args[0], self.code, self.name), self.__dict__


class AuthorizationError(BrokerError):
    """The principal lacks an access right."""


class SchemaRegistryError(KafkaSinkError):
    """The schema registry refused a schema, does not have it, or gave no answer. Nothing was written."""


class DeliveryError(KafkaSinkError):
    """A record was not acknowledged. The reason is in `__cause__` and in the words."""


class DeliveryTimeoutError(DeliveryError):
    """delivery.timeout.ms passed without an acknowledgement; the record may have been stored or not."""


class BatchRefusedError(DeliveryError):
    """The broker refused other records of the same batch by name. This one was not stored, and may be sent again."""


class DeadLetterError(DeliveryError):
    """A refused record could not be written to the dead-letter topic either."""


class TransactionAbortedError(DeliveryError):
    """The record was not sent, because its transaction was aborted."""


class TransactionError(KafkaSinkError):
    """A call about a transaction could not do what was asked."""


class TransactionAbortableError(TransactionError):
    """The transaction cannot be committed. After an abort the producer can go on with another one."""


class TransactionTimeoutError(TransactionError, TimeoutError):
    """No answer within max.block.ms. The outcome is not known; the same call may be repeated to learn it."""


class ExactlyOnceError(KafkaSinkError):
    """To go on would lose rows or write them twice. The words say why, and what can be done."""


class CommitLostError(ExactlyOnceError):
    """A batch is decided, and some of its transactions cannot be committed any more. The words name them."""


class PreflightError(KafkaSinkError):
    """Kafka cannot be written to as it was asked for. Every check that failed has a line; nothing was written."""


class BufferExhaustedError(KafkaSinkError):
    """buffer.memory stayed full for max.block.ms: the brokers take less than the job writes."""


class MetadataTimeoutError(KafkaSinkError):
    """The partitions of a topic stayed unknown for max.block.ms."""


class ProducerClosedError(KafkaSinkError):
    """The producer is closed, or failed for good; its cause is chained."""


class ProducerFencedError(BrokerError):
    """Another producer has taken over this producer's identity."""


class IllegalStateError(KafkaSinkError):
    """A move that a state table forbids: a fault of this library."""


def _rebuild_broker_error(kind: type[BrokerError], message: str, code: int, name: str) -> BrokerError:
    return kind(message, code=code, name=name)
