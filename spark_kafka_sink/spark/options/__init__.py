"""The options of a write: option strings -> SinkOptions, frozen and typed; every fault of them in one error.

table.py            the rows: name, default, how a value is read, meaning
parse.py            reads all that a job gives
create_topic.py     createTopic and what belongs to it: rows, and what they come to
distribution.py     distribution and what belongs to it, likewise
delivery.py         deliveryGuarantee and what belongs to it, likewise
values.py           how values are read that a job alone has
names.py            names of options as a job writes them, also in the words of the producer
others.py           names that are passed over: of Spark's source, of consumers, of registries
sink_options.py     SinkOptions, which is pickled to the tasks

The rows of valueFormat, keyFormat and schema registries are in formats/, which the producer has as well.
"""
