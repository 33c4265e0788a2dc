"""For tests of code that uses gigl_loader: ranks on this machine, tiny graphs, a reference check."""
