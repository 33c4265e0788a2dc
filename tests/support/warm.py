"""What processes of tests have imported when they start. Importing it starts no thread."""

from gigl_loader import testing
from gigl_loader.loader import ablp
from gigl_loader.remote import source, storage_process
from gigl_loader.rowcache import cache
from gigl_loader.sampler import (
    compiled,
    packing_kernels,
    ppr_kernels,
    tree_kernels,
)
from gigl_loader.workers import supervisor
from support import zygote

_IMPORTED_FOR_WHAT_THEY_IMPORT = ablp, source, storage_process, supervisor, zygote
for _name in vars(testing)["__all__"]:
    # names are imported when they are first used: now, before the fork
    getattr(testing, _name)
for _kernels_of in compiled, packing_kernels, cache, tree_kernels, ppr_kernels:
    _kernels_of.load()  # as each supervisor does, in a tenth of a second where they are not there
