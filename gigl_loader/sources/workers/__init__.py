"""Runs samplers in worker processes: start, feed, watch, stop."""
