from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import label_edge_index_to_dict as label_edge_index_to_dict
from gigl_loader.compat.gigl_loaders import (
    remap_labels_to_local_edge_indices as remap_labels_to_local_edge_indices,
)

__getattr__ = advise("gigl_loader.utils.ablp")
