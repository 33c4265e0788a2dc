"""Values and rows that the ranks of a job exchange, over ``torch.distributed``.

Face: `collectives`; `for_scripts` is public; `gloo_interface` for commands.
Must not know: who asks, and what for.
"""
