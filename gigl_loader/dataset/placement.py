"""Placement of a partition's tensors for sampling on a device: there, or in pinned host memory.

The partition in shared memory is unchanged: a placement holds copies on the device. What stays on
the host is pinned where it lies; a GPU reads it over its bus (UVA), so features larger than the
device's memory can stay there.
"""

from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import ConfigError, first_line
from gigl_loader.runtime.memory.pinned import PinnedRange, pinned_tensors
from gigl_loader.runtime.memory.tensors import each_tensor
from gigl_loader.runtime.sizes import size_in_words

FeaturesOn = Literal["device", "host"]
KernelsBy = Literal["torch", "warp"]
EdgesOn = Literal["own", "all", "host"]
_ROWS = ("node_features", "edge_features")
"""The parts that may stay on the host; the others are small beside them, or read more often."""
_SPARE = 0.9
"""Share of the free memory that a graph may take: the model needs memory, too."""


def existing_device(device: Any) -> torch.device:
    """Return ``device`` with its index; without one, that of the current device.

    Raises:
        ConfigError: torch has no such device, or sampling does not support its kind.
    """
    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = first_line(error)
        raise ConfigError(f"device={device!r} is no torch device: {reason}") from None
    if torch_device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={device!r}: graphs are sampled on CUDA devices or on the CPU")
    if torch_device.type == "cpu":
        return torch_device
    count = torch.cuda.device_count()
    if (torch_device.index or 0) >= count:
        raise ConfigError(
            f"device={device!r}, but torch finds {count} CUDA devices here: sample with workers, "
            "on the CPU"
        )
    return torch.device(
        "cuda", torch.cuda.current_device() if torch_device.index is None else torch_device.index
    )


class Placement:
    """A partition's tensors for one device: copies there, and pinned memory of the host.

    Args:
        device: A CUDA device; for tests and rehearsals the CPU.
        features: ``"device"``, or ``"host"``: features lie in pinned memory of the host.
        kernels: ``"torch"`` or ``"warp"``; None: chosen by the kind of device.
        cache: Device memory for features on the host, as ``remote_cache`` of a loader.
        edges: ``"own"``; ``"host"``: their ends and ids lie in pinned memory of the host; or of a
            partition ``"all"``: also the edges of all others.

    Raises:
        ConfigError: A value cannot work.
    """

    def __init__(
        self,
        device: torch.device,
        features: FeaturesOn = "device",
        kernels: KernelsBy | None = None,
        cache: int | str | None = None,
        edges: EdgesOn = "own",
    ) -> None:
        if edges not in ("own", "all", "host"):
            raise ConfigError(f'edges must be "own", "all" or "host", got {edges!r}')
        if features not in ("device", "host"):
            raise ConfigError(f'features must be "device" or "host", got {features!r}')
        if kernels not in (None, "torch", "warp"):
            raise ConfigError(f'kernels must be None, "torch" or "warp", got {kernels!r}')
        if cache is not None and features == "device":
            raise ConfigError(
                f'cache={cache!r} is for features="host": all features are on the device anyway'
            )
        self.device, self.features, self.kernels, self.edges = device, features, kernels, edges
        self.all_edges: dict[Any, Any] = {}
        """Edges of all ranks, for all loaders; see `sources.in_process.all_edges`."""
        self.cache = CacheOptions.of(cache, "cache")
        # before the copies: memory is unpinned before it is unmapped
        self._ranges: list[PinnedRange] = []
        # by the memory of a tensor: views of one partition share most of theirs
        self._copies: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def copy_view(self, view: PartitionView) -> PartitionView:
        """Return ``view`` with its tensors in their places; earlier copies are shared.

        Raises:
            ConfigError: The device has not enough free memory; nothing was copied.
            PinMemoryError: Memory of the host cannot be pinned.
        """
        # edges of other partitions come to a device from their devices
        view = replace(view, other_edges={})
        self._check_fits(view)
        self._pin(self._stays_on_host(view))
        return cast("PartitionView", each_tensor(view, self._copy_on_device))

    def nbytes(self, view: PartitionView) -> tuple[int, int]:
        """Return the bytes that ``view`` takes on the device, and of pinned host memory."""
        tensors: list[Tensor] = []
        each_tensor(view, tensors.append)
        sizes = {_memory_of(tensor): tensor.nbytes for tensor in tensors}
        stays = self._stays_on_host(view)
        on_host = sum(size for name, size in sizes.items() if name in stays)
        return sum(sizes.values()) - on_host, on_host

    def _stays_on_host(self, view: PartitionView) -> dict[tuple[Any, ...], Tensor]:
        """Return the tensors that stay in place."""
        # only the values and ends are large: what finds them is on the device
        stays = []
        if self.features == "host":
            stays += [rows.values for kind in _ROWS for rows in getattr(view, kind).values()]
        if self.edges == "host":
            stays += [tensor for a in view.adjacency.values() for tensor in (a.indices, a.edge_ids)]
        return {_memory_of(tensor): tensor for tensor in stays if tensor is not None}

    def _check_fits(self, view: PartitionView) -> None:
        if self.device.type != "cuda":
            return
        known = sum(copy.nbytes for _, copy in self._copies.values() if copy.is_cuda)
        wanted = self.nbytes(view)[0] - known
        free = torch.cuda.mem_get_info(self.device)[0]
        if wanted > _SPARE * free:
            raise ConfigError(
                f"the graph takes {size_in_words(wanted)} of {self.device}, which has "
                f"{size_in_words(free)} free, and the model needs some, too (`gigl-loader plan "
                "--gpu` counts the same): leave the features in pinned memory of the host with "
                'dataset.to(device, features="host"), take more partitions, or sample with workers'
            )

    def _pin(self, tensors: dict[tuple[Any, ...], Tensor]) -> None:
        new = {key: tensor for key, tensor in tensors.items() if key not in self._copies}
        placed, ranges = list(new.values()), list[PinnedRange]()
        if self.device.type == "cuda":
            placed, ranges = pinned_tensors(placed, self.device)
        self._ranges += ranges
        self._copies.update(zip(new, zip(new.values(), placed, strict=True), strict=True))

    def _copy_on_device(self, tensor: Tensor) -> Tensor:
        key = _memory_of(tensor)
        if key not in self._copies:
            # with its source, whose address is the key
            self._copies[key] = tensor, tensor.to(self.device, copy=True)
        return self._copies[key][1]


def _memory_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
