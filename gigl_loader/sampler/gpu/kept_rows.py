"""Features on the host, kept on the device until their next use.

::

    a batch was drawn    add():   the cache learns which rows it will need
    its turn has come    plan():  rows that are here, rows to come, and the slots that these take
                         rows():  copied out of slots; read on the host; written to slots

`sampler.row_cache.cache` decides which rows are kept, as for rows of other machines; only the slots
lie elsewhere. One thread plans, and one stream copies, in the order of the plans, so a slot has the
planned row when a copy reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.dataset.partition.partition_view import (
    Matrix,
    Owner,
    PartitionView,
    Rows,
    owner_of,
)
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.tables import WINDOW, RowTables, by_owner


@dataclass(frozen=True)
class KeptPlan:
    """The plan of one batch for the rows of one owner."""

    hits: Tensor
    """``[h]`` int64, positions of the batch whose rows are in slots."""
    hit_slots: Tensor
    missing: Tensor
    """``[m]`` int64, positions whose rows come from the host."""
    stored: Tensor
    """``[s]`` int64, the missing rows that are kept."""
    stored_slots: Tensor


class KeptRows:
    """The cache of one loader.

    Args:
        view: The graph, placed: features on the host, the rest on the device.
        kinds: Kinds of features that batches have.
        size: Bytes, or as a float the share of all rows.
        kernels: Kernels of the device.
        memory: Memory of the device.
    """

    def __init__(
        self,
        view: PartitionView[Tensor],
        kinds: tuple[str, ...],
        size: int | float,
        kernels: TorchKernels,
        memory: DeviceMemory,
    ) -> None:
        self._kernels, self._memory = kernels, memory
        self._rows: dict[Matrix, Rows[Tensor]] = {
            (kind, name): rows
            for kind in kinds
            for name, rows in getattr(view, kind).items()
            if rows.values.numel()
        }
        matrices = by_owner(
            {
                matrix: (rows.dtype, tuple(rows.values.shape[1:]))
                for matrix, rows in self._rows.items()
            }
        )
        counts = {owner_of(*matrix): rows.values.shape[0] for matrix, rows in self._rows.items()}
        nodes: dict[Any, int] = view.num_nodes
        num_ids = {owner: nodes.get(owner[1], count) for owner, count in counts.items()}
        tables = RowTables.of(matrices, num_ids, counts, size)
        self._slots = {
            matrix: self._rows[matrix].values.new_empty(
                (tables[owner].capacity, *self._rows[matrix].values.shape[1:]), device=memory.device
            )
            for owner, owned in matrices.items()
            for matrix in owned
        }
        # without matrices: the tables decide, the rows are on the device
        self._cache = RowCache.private(
            {owner: replace(table, matrices={}) for owner, table in tables.items()}
        )
        self._user = self._cache.join()
        self.window = WINDOW * max((table.capacity for table in tables.values()), default=0)
        """Rows that the batches known ahead may request."""
        self.hits = self.misses = 0

    @property
    def owners(self) -> set[Owner]:
        """Owners of the kept rows."""
        return set(self._cache.tables)

    def matrices(self, owner: Owner) -> list[Matrix]:
        """Return the matrices of an owner."""
        return [matrix for matrix in self._rows if owner_of(*matrix) == owner]

    def add(self, wanted: Mapping[Owner, Array]) -> int:
        """Announce the rows that a batch needs, by distinct ids; return its number."""
        return self._cache.add(self._user, wanted)

    def forget(self, number: int) -> None:
        """Announce that a batch is not going to be filled."""
        self._cache.forget(number)

    def plan(self, number: int, wanted: Mapping[Owner, Array]) -> dict[Owner, KeptPlan]:
        """Decide which rows of the batch whose turn has come are kept."""
        plans = {}
        for owner, slots in self._cache.plan(number, wanted).items():
            hits = np.flatnonzero(slots >= 0)
            missing = np.flatnonzero(slots < 0)
            stored = np.flatnonzero(slots[missing] < RowCache.MISSING)
            self.hits += hits.size
            self.misses += missing.size
            plans[owner] = KeptPlan(
                *(
                    self._uploaded(array)
                    for array in (hits, slots[hits], missing, stored, -2 - slots[missing][stored])
                )
            )
        return plans

    def rows(self, matrix: Matrix, ids: Tensor, plan: KeptPlan) -> Tensor:
        """Return the rows of ``ids`` (``[n]`` int64, on the device), as planned for these."""
        rows, slots = self._rows[matrix], self._slots[matrix]
        # before anything is written: this plan may give a slot to another row
        out = slots.new_empty((ids.numel(), *slots.shape[1:]))
        out.index_copy_(0, plan.hits, slots.index_select(0, plan.hit_slots))
        came = self._kernels.gather(rows.values, rows.locate(ids.index_select(0, plan.missing)))
        out.index_copy_(0, plan.missing, came)
        slots.index_copy_(0, plan.stored_slots, came.index_select(0, plan.stored))
        return out

    def _uploaded(self, array: Array) -> Tensor:
        return self._memory.uploaded_array(array.astype(np.int64))
