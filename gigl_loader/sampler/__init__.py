"""From seeds to one sample message. No processes, no channels."""
