"""Graphs and partitions that other libraries wrote, as tables."""
