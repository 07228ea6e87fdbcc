"""What each write or micro-batch has written: kept on the driver, read back, shown. Spark workers import none of it.

write_report.py     WriteReport, as a line of a log and as a line of JSON
store.py            where reports are kept
text_report.py      reports on a terminal
html_page.py           reports as one page of HTML, with the charts of figures.py, drawn by charts.py
skew.py             how even rows are spread over tasks and partitions
number_format.py        numbers in few characters
"""
