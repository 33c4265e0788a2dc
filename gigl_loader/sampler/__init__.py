"""Seeds to one sample message. No processes, no channels."""
