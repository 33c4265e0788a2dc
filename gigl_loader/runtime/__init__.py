"""What the library runs on: processes, threads, memory, connections, storage, compilers.

Face: its five folders, and the loose modules, which any room may import.
Must not know: graphs and batches.
"""
