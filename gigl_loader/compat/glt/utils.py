"""graphlearn-torch's ``utils``: what its scripts call, and what takes the place of the others."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.scripts import ensure_dir, seed_everything
from gigl_loader.compat.utils import get_free_port
from gigl_loader.runtime.sizes import parse_size

__all__ = ["ensure_dir", "get_free_port", "parse_size", "seed_everything"]

__getattr__ = advise("gigl_loader.glt.utils")
