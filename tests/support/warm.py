"""What processes of tests have imported when they start. Importing it starts no thread."""

import functools
import gc
import inspect
import weakref
from pathlib import Path

from torch.autograd import profiler
from torch_geometric import nn, template
from torch_geometric.nn.conv import message_passing

from gigl_loader import testing
from gigl_loader.graph_store.client import remote_source
from gigl_loader.graph_store.server import storage_process
from gigl_loader.loader import ablp
from gigl_loader.sources.workers import supervisor
from tests.support import zygote

_IMPORTED_FOR_WHAT_THEY_IMPORT = ablp, remote_source, storage_process, supervisor, zygote
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

# PyG writes code for each class of layers when its first layer is made, and parses the same two
# templates for each: two thirds of what a process with many models did.
template.FileSystemLoader = functools.cache(template.FileSystemLoader)
template.Environment = functools.cache(template.Environment)
_templates = template.Environment(
    loader=template.FileSystemLoader(str(Path(message_passing.__file__).resolve().parent))
)
for _name in _templates.list_templates(extensions=["jinja"]):
    _templates.get_template(_name)
# It writes and imports a module for each class of layers, in each process that makes one.
for _layer in (nn.SAGEConv, nn.GATConv, nn.GCNConv):
    _layer(1, 1)

# torch imports a module at the first mark for a profiler, which each loop over a loader sets.
with profiler.record_function("once"):
    pass

# By default each 700 new objects are searched for garbage, and every hundredth time all of them: a
# thirtieth of all processor time, of which the processes of tests end before there is any.
gc.set_threshold(20_000, 20, 20)

# torch and Numba undo three hundred registrations in memory that is about to be given back: for a
# process of a test, some of the longest hundredths of a second that it has
for _undone in list(vars(weakref.finalize)["_registry"]):
    _undone.atexit = False
