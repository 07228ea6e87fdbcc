"""The options of a write, parsed into a frozen, typed SinkOptions. One error reports all invalid options.

table.py            lists the sink's options with their names, defaults, parsers and descriptions
parse.py            parses all options of a write
create_topic.py     defines and parses createTopic and its options
distribution.py     defines and parses distribution and its options
client_rack.py      defines and parses clientRackEnv
write_method.py     defines writeMethod
delivery.py         defines and parses deliveryGuarantee and its options
values.py           parses kinds of values that only the sink's options have
names.py            spells option names as Spark jobs do, and lists options that get a specific error message
ignored_options.py  lists the options that the sink ignores: those of Spark's source, consumers and schema registries
sink_options.py     defines SinkOptions, which is pickled and sent to the tasks

The options for valueFormat, keyFormat and schema registries are in formats/, because the producer also has them.
"""
