"""``python -m gigl_loader VERB ...``; see `gigl_loader.commands.cli`."""

import sys

from gigl_loader.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
