"""Tables to partitions: ids to numbers, edges sorted by owner, within a given memory limit."""
