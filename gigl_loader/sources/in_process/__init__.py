"""Batches made in this process: on its CPU, on its GPU, or on the GPUs of all ranks.

Face: `in_process_source`, `device_source`.
Must not know: worker processes.
"""
