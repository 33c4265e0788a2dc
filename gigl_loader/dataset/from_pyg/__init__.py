"""PyG's graphs, as a dataset takes them in.

Face: `pyg_graph`, for those who cut them; `split_ids`.
Must not know: partitions on disk.
"""
