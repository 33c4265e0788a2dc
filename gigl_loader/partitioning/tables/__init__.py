"""Tables to read: what they hold, where their rows come from."""
