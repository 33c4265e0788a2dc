"""The old name of the storage server's command; see `gigl_loader.remote.command`."""

import sys

from gigl_loader.remote.command import main

if __name__ == "__main__":
    sys.exit(main())
