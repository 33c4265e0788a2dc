"""A compute process of a graph store: it joins, asks servers, and gets batches."""
