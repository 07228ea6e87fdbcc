"""The Spark data source `pykafka`: the only folder that knows Spark.

datasource.py   what Spark finds: KafkaDataSource
drop_in.py      register(): default save mode, threads, redaction
options.py      option strings -> SinkOptions, all faults in one error
columns.py      the column contract, and Arrow batches -> columns per topic
writer.py       what Spark calls: a batch and a stream writer over one write task
write_task.py   one task: Arrow batches in, acknowledged offsets out
bootstrap.py    the driver's look at the address, before any task
failures.py     the error of a failed task
dead_letters.py where records go that nobody would take
pool.py         producers that outlive a task
report.py       what was written, as messages from tasks, a line in the log, a line of JSON
"""
