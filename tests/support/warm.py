"""What processes of tests have imported when they start. Importing it starts no thread."""

import functools
import inspect
from pathlib import Path

from torch_geometric import template
from torch_geometric.nn.conv import message_passing

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

# PyG writes code for each class of layers when its first layer is made, and parses the same two
# templates for each: two thirds of what a process with many models did.
template.FileSystemLoader = functools.cache(template.FileSystemLoader)
template.Environment = functools.cache(template.Environment)
_templates = template.Environment(
    loader=template.FileSystemLoader(str(Path(message_passing.__file__).resolve().parent))
)
for _name in _templates.list_templates(extensions=["jinja"]):
    _templates.get_template(_name)
