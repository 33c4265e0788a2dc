"""A batch: the fields of a message, its memory, padding and splitting, PyG's form of it.

Face: `message`, `collate`, `padding`, `splitting`, `leases`, `slots`, `device.prefetch`.
Must not know: samplers, processes, epochs.
"""
