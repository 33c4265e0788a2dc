"""PyG's graphs, as a dataset takes them in."""
