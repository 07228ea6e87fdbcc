"""The Spark data source `pykafka`.

Elsewhere in the library, only the testing package, the demo job and `pykafka doctor --spark-conf` depend on Spark.

datasource.py         KafkaDataSource, the class that Spark instantiates
checks.py             checks on the driver before any task: options, schema, connection
connect_checks.py     the same checks for a client of Spark Connect, run on its driver
topic_creation.py     creates a missing topic before any task
distribution.py       moves each row to the task that writes its partition or key
columns.py            the column contract, and the plan of a DataFrame's columns
value_formats.py      the encoders of value and key for the columns of a DataFrame
arrow_types.py        the Arrow types of Spark's columns
map_in_arrow.py       writes through mapInArrow instead (on Spark 3.5, or with writeMethod=mapInArrow)
writer.py             the batch writer and the stream writer that Spark calls
exactly_once.py       exactly-once delivery in these writers
write_task.py         the write task: sends Arrow batches and returns acknowledged offsets
pool.py               producers that outlive a task
rate_limiter.py       limits a task to its share of maxBytesPerSecond
concurrent_tasks.py   the number of tasks that share maxBytesPerSecond
failures.py           builds the error that is raised when a task fails
dead_letters.py       the records that are written to the dead-letter topic
task_report.py        the report of a task, which is its commit message
report_publishing.py  publishes the report of a write to a file, a topic or a function
progress.py           combines these reports with Spark's progress events of a stream
lineage.py            sends OpenLineage events of writes
lineage_events.py     builds these events
worker_process.py     tunes the Python processes that Spark starts
worker_log.py         logging in these processes
pyspark_versions.py   substitutes for what older versions of pyspark lack
constants.py          the format name, internal options and shared error messages
options/              option strings -> SinkOptions
patches/              register(), and the methods that it installs in pyspark's writers

On the driver, before any task: options/ parses the option strings, columns.py plans the columns, checks.py checks the
write, topic_creation.py creates a missing topic, and distribution.py moves each row to the task that writes it.

In the tasks: write_task.py sends the rows and returns a report (task_report.py), using the producers in pool.py.
failures.py builds the exception raised when a task fails.

On the driver, after the tasks: writer.py commits or aborts, exactly_once.py does so with transactions, and
report_publishing.py, progress.py and lineage.py publish what was written.
"""

from spark_kafka_sink.errors import MissingDependencyError

try:
    import pyspark as pyspark  # imported once here, so that a missing pyspark gives one clear error
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'The Spark data source requires pyspark 3.5 or newer. Install it with pip install "spark-kafka-sink[spark]".'
    ) from error
