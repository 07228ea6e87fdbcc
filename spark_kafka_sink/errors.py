"""The library's exceptions, grouped by cause.

KafkaSinkError
├── ConfigurationError      invalid options; one error lists all problems of a configuration
│   └── MissingDependencyError  an optional package that the options require is not installed
├── DataError               invalid rows
│   ├── SchemaError             columns or types that cannot be written
│   ├── RecordTooLargeError     a record larger than max.request.size, buffer.memory or the broker's limit
│   └── InvalidRecordError      a record that no broker accepts: invalid topic, partition, timestamp or headers
├── DecodeError             bytes that cannot be decoded, usually because a faulty peer violated the protocol
│   └── UnsupportedFormatError  well-formed bytes in an older or newer format
├── NetworkError            the network failed, or no process listens at the address
│   └── DisconnectedError       the connection closed before the response arrived
├── AuthenticationError     rejected credentials or certificates; retrying does not help
│   ├── TlsError                the TLS handshake failed
│   └── ListenerMismatchError   the listener does not use SASL, or offers other mechanisms
├── UnsupportedVersionError the broker is too old or too new for the request
├── BrokerError             the broker returned an error code
│   ├── AuthorizationError      a permission is missing; the message names the resource
│   └── ProducerFencedError     another producer took over this producer's identity
├── SchemaRegistryError     the schema registry rejected a request or did not respond
├── DeliveryError           a record was not acknowledged; the cause is chained
│   ├── DeliveryTimeoutError    delivery.timeout.ms expired
│   ├── BatchRejectedError      not stored, because the broker rejected other records of the batch; may be sent again
│   ├── TransactionAbortedError not acknowledged, because its transaction was aborted
│   └── DeadLetterError         the dead-letter record of a failed row could not be written either
├── TransactionError        a transactional call failed
│   ├── TransactionAbortableError  abort the transaction, then begin a new one
│   └── TransactionTimeoutError    no response within max.block.ms; repeat the call to learn the outcome
├── ExactlyOnceError        the write stopped, because continuing would lose or duplicate rows
│   └── CommitLostError         the commit of a batch was decided, but can no longer be carried out in full
├── PreflightError          a check before the write failed; nothing was written
├── BufferExhaustedError    buffer.memory was full for max.block.ms
├── MetadataTimeoutError    a topic's partitions were unknown for max.block.ms
├── ProducerClosedError     a call after close(), or after the producer has failed permanently
└── IllegalStateError       a call that is not allowed in the current state, or a bug in this library
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


class KafkaSinkError(Exception):
    """Base class of all exceptions that the library raises deliberately.

    `str(error)` consists of the records' destination, the connection's address, the message, the remedy, and a warning
    if the records may have been stored.
    """

    destination: str = ""
    """The topic or topic-partition of the rows or the batch that failed, formatted by `format_partition`.

    "" if the message itself names the topic, or if the error is unrelated to records.
    """
    address: str = ""
    """The failed connection's address, or "" if the error is unrelated to a connection."""
    remedy: str = ""
    """Advice on fixing the error; "" if there is none.

    The advice is kept apart from the message, because it depends on what the caller does next.
    """
    possibly_stored: bool = False
    """Whether the records may have been stored, or their transaction committed, although an error was raised."""
    possibly_stored_warning: str = "The records may have been stored."
    """The sentence that the message ends with if `possibly_stored` is set."""

    def __init__(
        self,
        message: str = "",
        *,
        destination: str = "",
        address: str = "",
        remedy: str = "",
        possibly_stored: bool = False,
    ) -> None:
        super().__init__(message)
        # The class attributes are the defaults, so that a pickled error contains only the attributes that were set.
        if destination:
            self.destination = destination
        if address:
            self.address = address
        if remedy:
            self.remedy = remedy
        if possibly_stored:
            self.possibly_stored = possibly_stored

    @property
    def text(self) -> str:
        """The message, the remedy and the warning, without the destination and the address."""
        warning = self.possibly_stored_warning if self.possibly_stored else ""
        message, advice = super().__str__(), " ".join(filter(None, (self.remedy, warning)))
        if message and advice and not message.endswith((".", "?")):
            message += "."
        return " ".join(filter(None, (message, advice)))

    @property
    def reason(self) -> str:
        """`str(error)` without the destination, for text that names the destination elsewhere."""
        return f"{self.address}: {self.text}" if self.address else self.text

    def __str__(self) -> str:
        return f"{self.destination}: {self.reason}" if self.destination else self.reason

    def rewrite(self, convert: Callable[[str], str]) -> None:
        """Replace the message and the remedy with their converted text, for example to add a prefix to option names."""
        self.args = (convert(super().__str__()),)
        if self.remedy:
            self.remedy = convert(self.remedy)


def copy_error(error: ErrorT) -> ErrorT:
    """Copy an exception, with its cause, so that it can be raised again.

    If the same object is raised twice, its traceback shows both places and keeps the objects of all their frames alive.
    """
    copied_error = copy(error)
    copied_error.__cause__ = error.__cause__
    return copied_error


def clear_tracebacks(error: BaseException | None) -> None:
    """Clear the tracebacks of an error, its causes and its contexts, whose stack frames keep the data of records."""
    for linked_error in list_linked_errors(error):
        linked_error.__traceback__ = None


def list_linked_errors(error: BaseException | None) -> list[BaseException]:
    """Return an error, its causes and its contexts, each once, nearest first.

    They can form a cycle, because `raise error.__cause__` makes an error the context of its own cause.
    """
    linked_errors: list[BaseException] = []
    remaining_errors = [error]
    while remaining_errors:
        error = remaining_errors.pop(0)
        if error is not None and not any(error is linked_error for linked_error in linked_errors):
            linked_errors.append(error)
            remaining_errors += (error.__cause__, error.__context__)
    return linked_errors


def mark_possibly_stored(
    error: KafkaSinkError, warning: str = KafkaSinkError.possibly_stored_warning
) -> KafkaSinkError:
    """Return a copy of an error with `possibly_stored` set, and with the warning that its message is to end with."""
    marked_error = copy_error(error)
    marked_error.possibly_stored = True
    marked_error.possibly_stored_warning = warning
    return marked_error


class OptionSpelling(NamedTuple):
    """The way the user writes option names, such as `kafka.linger.ms` in a Spark job."""

    spell: Callable[[str], str] = str
    """A function that converts Kafka's name of an option to the name that the user writes."""
    sentence_prefix: str = ""
    """Text to put before an option name that starts a sentence, such as "Option " in "Option 'topic' must be ..."."""

    def format_text(self, text: str, values: Mapping[str, object] | None = None, prefix: str = "") -> str:
        """Replace each placeholder in an OptionProblem's text with a value or an option's name as the user writes it.

        `prefix`: the prefix to put before each option name (see OptionProblem.prefix).
        """
        return _OptionFormatter(values or {}, lambda name: self.spell(prefix + name)).vformat(text, (), {})


class _OptionFormatter(string.Formatter):
    """Formatter that replaces `{name}` with the value of that name, else with the option's name as the user writes it.

    Option names contain dots, which the base class would take for attribute lookups.
    """

    def __init__(self, values: Mapping[str, object], spell: Callable[[str], str]) -> None:
        self._values = values
        self._spell = spell

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, str]:
        value = self._values[field_name] if field_name in self._values else self._spell(field_name)
        return value, field_name


PLAIN_SPELLING = OptionSpelling()
"""Kafka's option names, unchanged."""


def option_placeholder(option: str) -> str:
    """Return the placeholder for an option's name in the text of an OptionProblem, for use in f-strings."""
    return f"{{{option}}}"


@dataclass(frozen=True)
class OptionProblem:
    """One problem with an option, as text. `render` replaces Kafka's option names with the user's spelling.

    The message consists of the option name and `text`. In `text`, `{name}` stands for a value if `name` is a key of
    `values`, else for the option of this name:

        OptionProblem("delivery.timeout.ms", "must be at least {linger.ms}, which is {linger}.", {"linger": 100})

    is rendered as "delivery.timeout.ms must be at least linger.ms, which is 100."
    """

    option: str
    text: str
    values: Mapping[str, object] = field(default_factory=dict)
    """Values to insert into `text`. Pass text from other sources as a value, because it may contain braces."""
    prefix: str = ""
    """The prefix of all option names in the message, such as `schema.registry.` for the TLS options of a registry."""

    def render(self, spelling: OptionSpelling = PLAIN_SPELLING) -> str:
        """Return the message with the option names in the user's spelling."""
        option = spelling.spell(self.prefix + self.option)
        return f"{spelling.sentence_prefix}{option} {spelling.format_text(self.text, self.values, self.prefix)}"


class OptionProblems(list["str | OptionProblem"]):
    """All problems of one configuration. A problem that is not about a single option is a plain string."""

    def add(self, option: str, text: str, **values: object) -> None:
        """Append an OptionProblem. The keyword arguments are the values to insert into its text."""
        self.append(OptionProblem(option, text, values))

    def with_prefix(self, prefix: str) -> OptionProblems:
        """Return a copy of the problems with `prefix` added to the option names."""
        return OptionProblems(
            problem if isinstance(problem, str) else replace(problem, prefix=prefix) for problem in self
        )

    def render(self, spelling: OptionSpelling = PLAIN_SPELLING) -> list[str]:
        """Return the messages with the option names in the user's spelling."""
        return [problem if isinstance(problem, str) else problem.render(spelling) for problem in self]


class ConfigurationError(KafkaSinkError, ValueError):
    """Invalid options. `problems` contains one message for each problem, and the error's message contains all of them.

    Subclasses must not change the constructor's parameters: copying and unpickling pass only the problems.
    """

    def __init__(self, problems: str | OptionProblem | Sequence[str | OptionProblem]) -> None:
        self._problems = (problems,) if isinstance(problems, str | OptionProblem) else tuple(problems)
        self.problems = self.render(PLAIN_SPELLING)
        super().__init__("\n".join(self.problems))

    @property
    def unrendered_problems(self) -> OptionProblems:
        """The problems before rendering, for a caller that adds them to its own problems."""
        return OptionProblems(self._problems)

    def render(self, spelling: OptionSpelling) -> tuple[str, ...]:
        """Return one message for each problem, with the option names in the user's spelling."""
        return tuple(self.unrendered_problems.render(spelling))

    def with_prefix(self, prefix: str) -> ConfigurationError:
        """Return a copy of the error in which the option names have a prefix."""
        return type(self)(self.unrendered_problems.with_prefix(prefix))

    def with_option(self, option: str, text: str, **values: object) -> ConfigurationError:
        """Return an error of the same type that names an option.

        Use this if the error comes from code that does not know which option the invalid value belongs to.

        `text`: the text of an OptionProblem, in which `{problem}` stands for the message of this error.
        `values`: the values of the OptionProblem.
        """
        return type(self)(OptionProblem(option, text, {**values, "problem": str(self)}))

    def rewrite(self, convert: Callable[[str], str]) -> None:
        self._problems = self.problems = tuple(convert(problem) for problem in self.problems)
        super().rewrite(convert)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._problems,), self.__dict__


class MissingDependencyError(ConfigurationError):
    """An optional package that the options require is not installed."""


class DataError(KafkaSinkError):
    """Rows that cannot be written."""


class SchemaError(DataError, ValueError):
    """Columns or types that cannot be written."""


class RecordTooLargeError(DataError):
    """A record that is larger than max.request.size, buffer.memory or the broker's limit."""


class InvalidRecordError(DataError, ValueError):
    """A record that no broker would accept, or that a broker rejected individually (KIP-467)."""


class DecodeError(KafkaSinkError):
    """The bytes cannot be decoded, usually because a faulty peer violated the protocol."""


class UnsupportedFormatError(DecodeError):
    """Well-formed bytes in an unsupported format, such as message sets older than Kafka 0.11."""


class NetworkError(KafkaSinkError):
    """The connection failed, or no process listens at the address."""


class DisconnectedError(NetworkError):
    """The connection closed before the response arrived, so it is unknown whether the broker executed the request."""


class AuthenticationError(KafkaSinkError):
    """The broker or the client rejected the identity of its peer. Retrying does not help."""


class TlsError(AuthenticationError):
    """The TLS handshake failed, for instance because of an unknown CA, a wrong host name or an expired certificate."""


class ListenerMismatchError(AuthenticationError):
    """The listener does not use SASL, or offers other mechanisms. The credentials were not checked."""


class UnsupportedVersionError(KafkaSinkError):
    """The broker does not support a required version of an API."""


class BrokerError(KafkaSinkError):
    """The broker returned an error.

    - `code`: Kafka's error code
    - `name`: the name of the error code, such as NOT_LEADER_OR_FOLLOWER
    """

    def __init__(self, message: str, *, code: int, name: str, destination: str = "") -> None:
        super().__init__(message, destination=destination)
        self.code = code
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_broker_error, (type(self), self.args[0], self.code, self.name), self.__dict__


class AuthorizationError(BrokerError):
    """The principal lacks a permission."""


class SchemaRegistryError(KafkaSinkError):
    """The schema registry rejected a schema, does not contain it, or did not respond. Nothing was written."""


class DeliveryError(KafkaSinkError):
    """A record was not acknowledged. The reason is in the message and in `__cause__`."""


class DeliveryTimeoutError(DeliveryError):
    """delivery.timeout.ms expired without an acknowledgement. It is unknown whether the record was stored."""


class BatchRejectedError(DeliveryError):
    """This valid record was not stored, because the broker rejected other records of its batch.

    It may be sent again.
    """


class DeadLetterError(DeliveryError):
    """The dead-letter record of a failed row could not be written either."""


class TransactionAbortedError(DeliveryError):
    """The record was not acknowledged before its transaction was aborted."""


class TransactionError(KafkaSinkError):
    """A transactional call failed."""


class TransactionAbortableError(TransactionError):
    """The transaction cannot be committed. After aborting it, the producer can begin a new one."""


class TransactionTimeoutError(TransactionError, TimeoutError):
    """No response arrived within max.block.ms. The outcome is unknown; repeat the same call to learn it."""


class ExactlyOnceError(KafkaSinkError):
    """The write stopped, because continuing would lose or duplicate rows. The message has the reason and a remedy."""


class CommitLostError(ExactlyOnceError):
    """The commit of a batch was decided, but some of its transactions can no longer be committed.

    The message names them.
    """


class PreflightError(KafkaSinkError):
    """Checks before a write failed, and nothing was written. The message has a line for each failed check."""


class BufferExhaustedError(KafkaSinkError):
    """buffer.memory was full for max.block.ms, because the job writes faster than the brokers accept records."""


class MetadataTimeoutError(KafkaSinkError):
    """A topic's partitions were unknown for max.block.ms."""


class ProducerClosedError(KafkaSinkError):
    """The producer is closed or has failed permanently. The cause of a failure is chained."""


class ProducerFencedError(BrokerError):
    """Another producer took over this producer's identity."""


class IllegalStateError(KafkaSinkError):
    """A call that is not allowed in the current state, such as a transactional call out of order or after a fork.

    The call changes nothing. If the message does not name a call that you made, report it as a bug in this library.
    """


def _rebuild_broker_error(error_type: type[BrokerError], message: str, code: int, name: str) -> BrokerError:
    """Recreate a pickled error. `__reduce__` can pass only positional arguments, and `code` and `name` are keywords."""
    return error_type(message, code=code, name=name)
