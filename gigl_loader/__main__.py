"""``python -m gigl_loader VERB ...``; see `gigl_loader.cli`."""

import sys

from gigl_loader.cli import main

if __name__ == "__main__":
    sys.exit(main())
