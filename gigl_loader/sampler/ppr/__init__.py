"""Batches by personalised PageRank."""
