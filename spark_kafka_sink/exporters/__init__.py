"""Metrics for others: prometheus.py and opentelemetry.py, each by the client of its project, which is an extra."""
