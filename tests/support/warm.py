"""What processes of tests have imported when they start. Importing it starts no thread."""

import inspect

from gigl_loader import testing
from gigl_loader.client import source
from gigl_loader.loader import ablp
from gigl_loader.server import storage_process
from gigl_loader.workers import supervisor
from support import zygote

_IMPORTED_FOR_WHAT_THEY_IMPORT = ablp, source, storage_process, supervisor, zygote
for _name in vars(testing)["__all__"]:
    # names are imported when they are first used: now, before the fork
    getattr(testing, _name)
for _load in supervisor.KERNELS.values():
    _load()  # as each supervisor does, in a tenth of a second where they are not there

# torchrun's rendezvous calls inspect.stack() twice at each of its steps. That looks for the module
# of each frame: the first time it asks for the file of each of thousands of modules, and for frames
# without a file it goes through all modules again. A step took longer than the second after which
# the rendezvous lets the others know that it lives, and on a busy machine it did nothing else.
inspect.stack()
vars(inspect)["modulesbyfile"] |= dict.fromkeys(("<string>", "<stdin>", "<frozen runpy>"), "")
