"""Cache of rows of other machines, based on exact knowledge of later batches: memory, pipeline."""
