"""Old public path of `commands.diagnose`: ``python -m gigl_loader.diagnose``."""

import sys

from gigl_loader.commands.diagnose import main as main

if __name__ == "__main__":
    sys.exit(main())
