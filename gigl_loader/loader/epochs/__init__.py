"""One pass over the batches: counted, and resumed from a state or a checkpoint.

Face: `iterator`, `epoch`, `checkpoints`.
Must not know: which source serves it.
"""
