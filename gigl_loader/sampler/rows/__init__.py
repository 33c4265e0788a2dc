"""Neighbours and rows by global id, from whoever owns them."""
