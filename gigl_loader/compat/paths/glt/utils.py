"""Old public path of `compat.glt.utils`."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.utils import ensure_dir, get_free_port, parse_size, seed_everything

__all__ = ["ensure_dir", "get_free_port", "parse_size", "seed_everything"]

__getattr__ = advise("gigl_loader.glt.utils")
