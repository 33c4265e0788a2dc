"""The stages of `partition_tables`, in order: ids, rows, owners, communities, edges.

Face: `pipeline`, which runs them.
Must not know: where a run keeps its state.
"""
