"""Compiled loops of samplers. No state, no I/O; they release the GIL."""
