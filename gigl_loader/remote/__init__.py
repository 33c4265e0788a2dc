"""The graph store, whole: the storage servers, and the compute processes that ask them."""
