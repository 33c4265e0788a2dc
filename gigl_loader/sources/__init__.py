"""What all sources of batches share: the interface, the input, and the turns of a start."""
