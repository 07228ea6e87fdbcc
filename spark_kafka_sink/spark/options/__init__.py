"""The options of a write: option strings -> SinkOptions, frozen and typed. One error reports all invalid options.

table.py            the table of the sink's options: name, default, parser, meaning
parse.py            parses all options of a write
create_topic.py     the options of createTopic
distribution.py     the options of distribution
client_rack.py      the option clientRackEnv
write_method.py     the option writeMethod
delivery.py         the options of deliveryGuarantee
values.py           parsers of option values that only the sink has
names.py            option names as a Spark job writes them, and options that need their own error message
ignored_options.py  options of Spark's source, of consumers and of registries, which the sink ignores
sink_options.py     SinkOptions, which is pickled to the tasks

The options of valueFormat, keyFormat and schema registries are in formats/, because the producer has them, too.
"""
