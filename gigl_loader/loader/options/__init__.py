"""The keywords of loaders: checked as a whole before anything is started.

Face: `loader_options`, `keywords`.
Must not know: processes.
"""
