"""A producer's calls that take tables, as users see them. What they do is in tables.py and table_plan.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a task of Spark has columns already, and loads none of it
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from typing_extensions import Unpack

    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.futures import ColumnsFuture
    from spark_kafka_sink.producer.tables import TableResult
    from spark_kafka_sink.producer.typed_options import TableOptions
    from spark_kafka_sink.records.columns import RecordColumns

DEFAULT_FAILED_ROWS_MAX = 10_000


class TableCalls:
    """Base class of KafkaProducer with its calls for tables."""

    if TYPE_CHECKING:
        config: ProducerConfig

        def send_columns(
            self, topic: str, columns: RecordColumns, partition: int | pa.Array | None = None
        ) -> ColumnsFuture: ...

        def prefetch_topics(self, topics: Iterable[str]) -> set[str]: ...

        def without_linger(self) -> AbstractContextManager[None]: ...

    def send_table(  # noqa: PLR0913 - the fields of a record, each by its name
        self,
        topic: str | None,
        table: Any,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: str | None = None,
        failed_rows_max: int = DEFAULT_FAILED_ROWS_MAX,
        progress: bool = True,
        **formats: Unpack[TableOptions],
    ) -> TableResult:
        """Send all rows of a table or a stream, and wait until each is acknowledged or has failed.

        `table` is an object that exports Arrow columns: of pyarrow, polars, DuckDB, pandas, Daft. `key`, `value`,
        `headers`, `partition` and `timestamp` name columns, or the columns of these names are taken; `partition` may
        be a number.
        With `topic` None, the column `topic` says where each row goes.

        `value_format`, `key_format` and what belongs to them (`value_schema`, `schema_registry_url`, ...) are those of
        the Spark sink, written with underscores; a value then has the columns that `value` names, or all others.

        Reading stops when more than `failed_rows_max` rows have failed. An exception, also one of the stream, has the
        result of the rows before it as its attribute `table_result`. `progress`: draw a bar, on a terminal.

        Example:

            orders = pa.table({"id": ["o-1", "o-2"], "amount": [12.5, 8.0]})
            result = producer.send_table("orders", orders, key="id", value_format="json")
            result.raise_for_failures()
        """
        from spark_kafka_sink.producer.progress_bar import Progress
        from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table
        from spark_kafka_sink.producer.tables import TableSender, open_table

        reader, total = open_table(table)
        mapping = ColumnMapping(value, key, headers, partition, timestamp)
        sender = TableSender(self, plan_table(topic, reader.schema, mapping, formats), failed_rows_max)
        with Progress("records", total, prints_total=False, is_shown=progress, delay_s=1) as bar:
            for answered in sender.steps(reader):
                bar.advance(answered)
        return sender.result

    async def send_table_async(  # noqa: PLR0913 - as send_table
        self,
        topic: str | None,
        table: Any,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: str | None = None,
        failed_rows_max: int = DEFAULT_FAILED_ROWS_MAX,
        **formats: Unpack[TableOptions],
    ) -> TableResult:
        """Call send_table() without blocking the event loop: a thread reads the table and hands its rows over.

        A task that is cancelled reads no further; rows that were handed over go on.

        Example:

            orders = pa.table({"id": ["o-1", "o-2"], "amount": [12.5, 8.0]})
            result = await producer.send_table_async("orders", orders, key="id", value_format="json")
        """
        from asyncio import to_thread

        from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table
        from spark_kafka_sink.producer.tables import TableSender, open_table

        reader, _ = await to_thread(open_table, table)
        mapping = ColumnMapping(value, key, headers, partition, timestamp)
        plan = await to_thread(plan_table, topic, reader.schema, mapping, formats)
        sender = TableSender(self, plan, failed_rows_max)
        steps = sender.steps(reader)
        while await to_thread(next, steps, None) is not None:
            pass
        return sender.result
