"""The number of machines for a graph, and their seeds per second, before you rent any."""
