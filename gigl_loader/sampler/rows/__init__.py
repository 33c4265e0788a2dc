"""Neighbours and rows by global id, from whoever owns them.

Face: `reader`, `row_exchange`, `packing`.
Must not know: how requests travel.
"""
