"""Values and rows that the ranks of a job exchange."""
