"""Loaders that users import, and the state of their epochs."""
