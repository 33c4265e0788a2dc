"""Graphs and partitions that DGL, GraphStorm, PyG and GiGL wrote, as tables.

Face: `foreign_graphs`, `gigl_graphs`.
Must not know: how tables are cut.
"""
