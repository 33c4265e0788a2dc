"""graphlearn-torch's ``typing``: the names that its scripts import."""

from gigl_loader.compat.glt.scripts import Split as Split
from gigl_loader.dataset.schema import EdgeType as EdgeType
from gigl_loader.dataset.schema import NodeType as NodeType
from gigl_loader.dataset.schema import reverse_edge_type as reverse_edge_type
