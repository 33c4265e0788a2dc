"""Databases, as graphs: tables are node types, foreign keys are edge types.

`source` opens one, `kinds` finds what its columns are, `encode` writes its rows as Parquet, which
`partition_database` hands to `partition_tables`.
"""
