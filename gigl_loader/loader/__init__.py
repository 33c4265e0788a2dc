"""What users iterate: `BaseDistLoader`, the loaders of nodes, links and labels, their profile.

Face: `base`, `node_loader`, `epochs.checkpoints`, `deployment.job_ranks`.
Must not know: how batches are sampled.
"""
