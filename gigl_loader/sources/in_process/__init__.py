"""Batches made in this process: on its CPU, on its GPU, or on the GPUs of all ranks."""
