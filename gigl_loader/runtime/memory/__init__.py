"""Shared memory: segments without a name, slots for messages, and leases of their readers."""
