"""The coordination of a job at any size, in one process and with a clock of its own."""
