"""A partition as plain arrays: read by samplers, built of tensors, checked.

Face: `view`, `adjacency`, `build`, `checks`.
Must not know: files.
"""
