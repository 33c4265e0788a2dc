"""What travels between compute processes and storage servers: calls, values and messages.

Face: all of it, for `server` and `client`.
Must not know: who sends it.
"""
