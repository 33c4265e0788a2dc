"""A trained model on the whole graph: exact embeddings and gradients without sampling."""
