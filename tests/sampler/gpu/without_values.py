"""A graph on a device without values: what has to know one, to go on, raises."""

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.runtime.memory.tensors import each_tensor
from gigl_loader.sampler.gpu.device_graph import LocalDeviceGraph
from gigl_loader.sampler.gpu.device_kernels import TorchKernels

DEVICE = torch.device("meta")


class GraphWithoutValues(LocalDeviceGraph):
    """A placed graph that forgets its values when it has its degrees, the only wait of a loader.

    It is read within ``mode``.
    """

    def __init__(
        self,
        view: PartitionView[torch.Tensor],
        edge_types: Sequence[EdgeType],
        mode: FakeTensorMode,
    ) -> None:
        super().__init__(view, edge_types, TorchKernels(torch.device("cpu")))
        self._kernels = TorchKernels(DEVICE)
        with mode:
            self.view = each_tensor(
                view, lambda t: torch.empty(t.shape, dtype=t.dtype, device=DEVICE)
            )
