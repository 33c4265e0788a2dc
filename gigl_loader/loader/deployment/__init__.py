"""Which process of which job this is, and which source serves its loaders.

Face: `job_ranks`, `process_role`.
Must not know: epochs.
"""
