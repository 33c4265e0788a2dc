"""One pass over the batches, and how it is resumed."""
