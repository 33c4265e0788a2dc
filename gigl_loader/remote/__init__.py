"""The graph store: storage servers, and the compute processes that use them."""
