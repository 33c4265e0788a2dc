"""The old name of the storage server's command; see `gigl_loader.remote.command`."""

import sys

from gigl_loader.remote.command import main

# scripts and manifests start servers by ``python -m gigl_loader.graph_store.serve``
if __name__ == "__main__":
    sys.exit(main())
