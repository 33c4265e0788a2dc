"""Graphs cut into partitions; their files are the work of `dataset.format`.

Face: `partition_graph`, `partition_tables`, `tables.spec`, the readers of other libraries' graphs.
Must not know: who loads the partitions.
"""
