"""The graph of this process: schema, identity, `DistDataset`, look-ups, placement on a device.

Face: `DistDataset`, `schema`, `lookup`, `identity`, `placement`, and parts of its three folders.
Must not know: who samples it, and who wrote it.
"""
