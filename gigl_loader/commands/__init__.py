"""The verbs of `gigl-loader`, a module for each; `cli` is the door.

Face: `cli.main`.
Must not know: `compat` and `testing`.
"""
