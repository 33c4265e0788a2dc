"""Datasets: the partition of this process (local), or a handle on a graph store (remote)."""
