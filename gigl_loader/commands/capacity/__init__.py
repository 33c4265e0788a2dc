"""The number of machines for a graph, and their seeds per second, before you rent any.

Face: `expect`, `needs`, `measure`.
Must not know: running jobs.
"""
