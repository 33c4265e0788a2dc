"""A trained model on the whole graph: exact embeddings and gradients without sampling.

Face: `full_graph`, `full_graph_inference`.
Must not know: loaders.
"""
