"""What the library runs on: processes, memory, connections, storage, compilers. Knows no graph."""
