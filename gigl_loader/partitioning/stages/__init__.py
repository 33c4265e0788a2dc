"""The stages of `partition_tables`: ids, rows, owners, edges."""
