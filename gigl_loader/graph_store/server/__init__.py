"""A storage server: its partition, its producers, and the processes that are present."""
