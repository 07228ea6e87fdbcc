"""The options of a write: option strings -> SinkOptions, frozen and typed; every fault of them in one error.

parse.py            reads all that a job gives
names.py            names of options as a job writes them, also in the words of the producer
formats.py          valueFormat, keyFormat and what belongs to them
registry.py         those of a schema registry
delivery.py         deliveryGuarantee and what belongs to it
sink_options.py     SinkOptions, which is pickled to the tasks
"""
