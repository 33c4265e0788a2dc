"""Batches by personalised PageRank.

Face: `ppr_sampler`.
Must not know: who owns rows.
"""
