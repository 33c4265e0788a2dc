"""The way of a batch to the accelerator: pinned memory, and copies that overlap compute.

Face: `prefetch`; `device_memory` and `copy_stream` for samplers on a device.
Must not know: what is in a batch.
"""
