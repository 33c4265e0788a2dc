"""Sample messages to PyG batches: pure functions."""
