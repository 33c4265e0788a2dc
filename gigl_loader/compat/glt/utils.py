"""graphlearn-torch's ``utils``: what its scripts call, and what takes the place of the others."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.scripts import ensure_dir as ensure_dir
from gigl_loader.compat.glt.scripts import seed_everything as seed_everything
from gigl_loader.compat.utils import get_free_port as get_free_port
from gigl_loader.runtime.sizes import parse_size as parse_size

__getattr__ = advise("gigl_loader.glt.utils")
