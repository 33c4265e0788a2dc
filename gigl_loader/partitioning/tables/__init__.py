"""Tables to read: what they hold, where their rows come from.

Face: `spec`, for users and commands.
Must not know: partitions.
"""
