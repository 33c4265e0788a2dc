"""Rows of other machines, kept until their next use, which is known: batches are drawn ahead.

Face: `machine`, `look_ahead`, `pipeline`, `cache`, `tables`.
Must not know: who owns the rows, and how they travel.
"""
