"""Which process of which job this is, and what serves it."""
