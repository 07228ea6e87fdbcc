"""The methods of KafkaProducer that send tables: their arguments, and the transaction that they belong to.

tables.py reads a table and sends its rows. table_plan.py maps its columns to record fields. These modules are imported
only when a table is sent, because the imports would slow down Spark tasks, which send columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DeliveryError, KafkaSinkError

if TYPE_CHECKING:  # Spark tasks send columns, so they need not import any of this
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from typing_extensions import Unpack

    from spark_kafka_sink.producer.columns_writer import ColumnsProducer
    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.futures import ColumnsFuture
    from spark_kafka_sink.producer.table_plan import ColumnMapping
    from spark_kafka_sink.producer.tables import TableResult, TableSender
    from spark_kafka_sink.producer.transactional import OpenTransactionCheck
    from spark_kafka_sink.producer.typed_options import TableOptions
    from spark_kafka_sink.records.columns import RecordColumns

DEFAULT_MAX_FAILED_ROWS = 10_000
"""Number of failed rows that send_table() tolerates, unless the caller passes another limit."""


class TableCalls:
    """Base class of KafkaProducer with the methods that send tables. Its subclass defines the members declared here."""

    if TYPE_CHECKING:
        config: ProducerConfig

        def send_columns(
            self,
            topic: str,
            columns: RecordColumns,
            partition: int | pa.Array | None = None,
            *,
            keep_row_indices: bool = False,
            ignored_key_bytes: int = 0,
        ) -> ColumnsFuture: ...

        def prefetch_topics(self, topics: Iterable[str]) -> set[str]: ...

        def without_linger(self) -> AbstractContextManager[None]: ...

        def _build_transaction_check(self, transaction_number: int | None = None) -> OpenTransactionCheck | None: ...

        def _send_columns(
            self,
            topic: str,
            columns: RecordColumns,
            partition: int | pa.Array | None,
            transaction_check: OpenTransactionCheck | None,
            *,
            keep_row_indices: bool,
            ignored_key_bytes: int,
        ) -> ColumnsFuture: ...

    def send_table(  # noqa: PLR0913 - one parameter per record field
        self,
        topic: str | None,
        table: Any,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: str | None = None,
        max_failed_rows: int = DEFAULT_MAX_FAILED_ROWS,
        progress: bool = True,
        **formats: Unpack[TableOptions],
    ) -> TableResult:
        """Send all rows of a table or a stream, and wait until each row is acknowledged or has failed.

        - `topic`: the topic of all rows; None to send each row to the topic in its column `topic`
        - `table`: an object that exports Arrow columns, such as a table of pyarrow, polars, DuckDB, pandas or Daft
        - `key`, `value`, `headers`, `partition`, `timestamp`: the names of columns. The default for each argument is
          the column with its name. `partition` may also be a partition number
        - `max_failed_rows`: reading stops once more than this number of rows have failed
        - `progress`: draw a progress bar if standard error is a terminal
        - `formats`: `value_format` and `key_format` encode the columns that `value` or `key` names into the value or
          the key. If `value` names no columns, all other columns are encoded into the value. The other arguments
          (`value_schema`, `schema_registry_url`, ...) are options of the Spark sink, written with underscores

        If an exception is raised, even one from the stream, its attribute `table_result` is the result of the rows that
        were read before. After a KeyboardInterrupt, the result covers only the rows that were completed by then. Other
        rows that were sent may complete later.

        If this method raises any exception in a transaction, even a KeyboardInterrupt, the transaction can only be
        aborted, because rows of the table are missing.

        Example:

            orders = pa.table({"id": ["o-1", "o-2"], "amount": [12.5, 8.0]})
            result = producer.send_table("orders", orders, key="id", value_format="json")
            result.raise_for_failures()
        """
        from spark_kafka_sink.producer.progress_bar import Progress
        from spark_kafka_sink.producer.table_plan import ColumnMapping

        mapping = ColumnMapping(value=value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        transaction = _TableTransaction(self)
        with transaction.prevent_commit_on_error():
            prepared = _prepare_table(transaction, topic, table, mapping, max_failed_rows, formats)
            sender = prepared.sender
            with Progress("records", prepared.row_count, prints_total=False, is_shown=progress, delay_s=1) as bar:
                try:
                    for completed_count in sender.send_batches(prepared.reader):
                        bar.advance(completed_count)
                except BaseException as error:  # even a KeyboardInterrupt gets the result of the rows so far
                    sender.attach_result(error)
                    raise
        return sender.result

    async def send_table_async(  # noqa: PLR0913 - same arguments as send_table
        self,
        topic: str | None,
        table: Any,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: str | None = None,
        max_failed_rows: int = DEFAULT_MAX_FAILED_ROWS,
        **formats: Unpack[TableOptions],
    ) -> TableResult:
        """Send a table as send_table() does, without blocking the event loop.

        A thread reads the table and sends its rows. If the task is cancelled, reading stops, and an open transaction
        cannot be committed. Outside of a transaction, rows that were already passed to the producer are still sent.

        Example:

            orders = pa.table({"id": ["o-1", "o-2"], "amount": [12.5, 8.0]})
            result = await producer.send_table_async("orders", orders, key="id", value_format="json")
        """
        from asyncio import to_thread

        from spark_kafka_sink.producer.table_plan import ColumnMapping

        mapping = ColumnMapping(value=value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        transaction = _TableTransaction(self)
        with transaction.prevent_commit_on_error():
            prepared = await to_thread(_prepare_table, transaction, topic, table, mapping, max_failed_rows, formats)
            completed_counts = prepared.sender.send_batches(prepared.reader)
            # Each step sends one batch, in a thread. The iterator yields only numbers, so None means that it has ended.
            while await to_thread(next, completed_counts, None) is not None:
                pass
        return prepared.sender.result


class _TableTransaction:
    """Keeps the rows of a send_table() call in the transaction that was open when the call began.

    When send_table_async() is cancelled and the program begins another transaction, the thread of the call may still be
    reading rows. These rows must not be added to the new transaction.

    While the rows are sent, this object is used instead of the producer: it is a ColumnsProducer, too.
    """

    def __init__(self, producer: TableCalls) -> None:
        # These members of a ColumnsProducer do not depend on the transaction.
        self.config = producer.config
        self.prefetch_topics = producer.prefetch_topics
        self.without_linger = producer.without_linger
        self._producer = producer
        self._transaction_number: int | None = None
        # Ignore the error if the producer cannot send. It is raised again when rows are sent, so errors in the
        # arguments come first.
        with suppress(KafkaSinkError):
            transaction_check = producer._build_transaction_check()
            self._transaction_number = None if transaction_check is None else transaction_check.transaction_number

    def columns_producer(self) -> ColumnsProducer:
        """Return the object that sends the rows: this one, or the producer itself if no transaction was open."""
        return self._producer if self._transaction_number is None else self

    def send_columns(
        self,
        topic: str,
        columns: RecordColumns,
        partition: int | pa.Array | None = None,
        *,
        keep_row_indices: bool = False,
        ignored_key_bytes: int = 0,
    ) -> ColumnsFuture:
        """Send columns as KafkaProducer.send_columns() does, but only in the transaction of this send_table() call.

        Raise IllegalStateError if the transaction has ended.
        """
        transaction_check = self._build_transaction_check()
        return self._producer._send_columns(
            topic,
            columns,
            partition,
            transaction_check,
            keep_row_indices=keep_row_indices,
            ignored_key_bytes=ignored_key_bytes,
        )

    def prevent_commit(self, error: KafkaSinkError) -> None:
        """Prevent the commit of the transaction, if any, because `error` prevented some rows from being sent.

        Raise a KafkaSinkError if the producer cannot send now, for example because the transaction has ended.
        """
        transaction_check = self._build_transaction_check()
        if transaction_check is not None:
            transaction_check.prevent_commit(error)

    @contextmanager
    def prevent_commit_on_error(self) -> Iterator[None]:
        """Prevent the commit of the transaction, if any, when the block raises any exception.

        Otherwise a program that catches the exception could commit only part of the table.
        """
        try:
            yield
        except BaseException as error:
            with suppress(KafkaSinkError):  # raised if the transaction has ended or cannot be committed anyway
                self.prevent_commit(error if isinstance(error, KafkaSinkError) else _build_interrupted_error(error))
            raise

    def _build_transaction_check(self) -> OpenTransactionCheck | None:
        """Build the check that this transaction is still open; None if the producer is not transactional.

        Raise a KafkaSinkError if rows can no longer be sent in this transaction.
        """
        return self._producer._build_transaction_check(self._transaction_number)


class _PreparedTable(NamedTuple):
    """A table that is ready to be sent with `sender.send_batches(reader)`."""

    sender: TableSender
    reader: pa.RecordBatchReader
    row_count: int | None
    """The number of rows of the table; None if it is unknown."""


def _prepare_table(
    transaction: _TableTransaction,
    topic: str | None,
    table: Any,
    mapping: ColumnMapping,
    max_failed_rows: int,
    table_options: TableOptions,
) -> _PreparedTable:
    """Validate the arguments of a send_table() call and open the table.

    `table_options`: format and schema registry options, keyed by the name of the send_table() argument.

    Raise ConfigurationError for invalid arguments, and InvalidRecordError if `table` is not a table.
    """
    from spark_kafka_sink.producer.table_plan import plan_table
    from spark_kafka_sink.producer.tables import TableSender, open_table

    reader, row_count = open_table(table)
    plan = plan_table(topic, reader.schema, mapping, table_options)
    sender = TableSender(
        transaction.columns_producer(), plan, max_failed_rows, on_unsent_rows=transaction.prevent_commit
    )
    return _PreparedTable(sender, reader, row_count)


def _build_interrupted_error(cause: BaseException) -> DeliveryError:
    """Build the error for a table that was not sent completely, because of an exception that is no KafkaSinkError."""
    cause_text = sanitize(str(cause)).removesuffix(".")
    details = f": {cause_text}" if cause_text else ""
    error = DeliveryError(
        f"send_table() did not send all rows of its table, because {type(cause).__name__} was raised{details}."
    )
    error.__cause__ = cause
    return error
