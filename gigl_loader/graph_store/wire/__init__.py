"""What travels between compute processes and storage servers: calls, values and messages."""
