"""The seeds of an epoch, as users give them: checked, cut over ranks, grouped.

Face: `seed_input`, `edge_input`, `ablp_input`, `world`.
Must not know: what a source is.
"""
