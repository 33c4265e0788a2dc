"""Compiled loops of samplers. No state, no I/O; they release the GIL.

Face: `kernel_loaders`, for processes that load them before they are needed.
Must not know: types of nodes and edges.
"""
