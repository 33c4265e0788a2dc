"""Tables to partitions: numbers for ids, edges sorted by owner, within a given memory."""
