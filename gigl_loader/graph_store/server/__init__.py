"""A storage server: its partition, its producers, the processes that are present, its jobs.

Face: `storage_process`, `service`.
Must not know: `client`.
"""
