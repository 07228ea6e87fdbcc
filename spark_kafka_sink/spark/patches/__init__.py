"""What reaches into pyspark: register(), and what it puts in the place of methods of pyspark's writers.

drop_in.py          register(): which methods it replaces, and what it sets
save_and_start.py   what takes their place: a look before Spark plans, fewer columns, mode append, output mode update
recorded_writer.py  writers of pyspark that remember the calls of their methods
plain_errors.py     what they raise: the sentence, without the stages of a job around it
"""
