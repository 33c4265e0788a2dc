"""What processes of tests have imported when they start. Importing it starts no thread."""

from gigl_loader import testing
from gigl_loader.loader import link
from gigl_loader.remote import server, source
from gigl_loader.sampler import _kernels
from gigl_loader.workers import supervisor

_IMPORTED_FOR_WHAT_THEY_IMPORT = link, server, source, supervisor
for _name in testing.__all__:
    getattr(testing, _name)
_kernels.load()  # supervisors need them
