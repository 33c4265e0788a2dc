"""A partition as files: our mapped format, and graphlearn-torch's.

Face: `mapped`, `mapped_writer`, `directory`, `glt_files`, `fetched_root`, `view_writer`.
Must not know: how a graph was cut.
"""
