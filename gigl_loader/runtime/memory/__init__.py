"""Shared memory: segments without a name, tensors over them, a lock, pinned memory, read-ahead.

Face: `segments`, `tensors`, `same_host`, `mutex`, `pinned`, `read_ahead`.
Must not know: what lies in a segment.
"""
