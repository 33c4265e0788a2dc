"""What is read: this process's partition (local), or a handle on a graph store (remote)."""
