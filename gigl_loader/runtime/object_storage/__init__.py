"""Folders in S3, Google Cloud Storage and Azure: copied into a cache of this machine, or uploaded.

Face: `ObjectFolder`, `Cache`, `Fetch`, `file_system_of` (files that are read where they are), and
the options of commands.
Must not know: graphs.
"""
