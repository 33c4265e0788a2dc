"""A compute process of a graph store: it joins, asks servers, and gets batches.

Face: `compute_process`, `remote_source`, `remote_dist_dataset`.
Must not know: `server`.
"""
