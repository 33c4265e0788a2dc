"""Names of other libraries, a file each, which refuses to be imported: see `compat.advice`."""
