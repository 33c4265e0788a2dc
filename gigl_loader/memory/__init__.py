"""Shared memory: segments without a name, slots for messages, and who reads them where they lie."""
