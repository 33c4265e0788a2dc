"""The old name of the storage server's command; see `gigl_loader.commands.storage`."""

import sys

from gigl_loader.commands.storage import main

# scripts and manifests start servers by ``python -m gigl_loader.graph_store.serve``
if __name__ == "__main__":
    sys.exit(main())
