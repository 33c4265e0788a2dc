"""Rows of other machines, kept by exact knowledge of what comes: one memory, one pipeline."""
