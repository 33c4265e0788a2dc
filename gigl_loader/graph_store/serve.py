"""The old name of the storage server's command; see `gigl_loader.commands.serve`."""

import sys

from gigl_loader.commands.serve import main

# scripts and manifests start servers by ``python -m gigl_loader.graph_store.serve``
if __name__ == "__main__":
    sys.exit(main())
