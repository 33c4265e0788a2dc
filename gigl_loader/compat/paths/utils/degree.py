from gigl_loader.compat.advice import advise
from gigl_loader.dataset.degrees import (
    compute_and_broadcast_degree_tensor as compute_and_broadcast_degree_tensor,
)

__getattr__ = advise("gigl_loader.utils.degree")
