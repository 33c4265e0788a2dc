"""What a simulated process holds in its own tables, told apart from what the simulation holds."""

import gc
import logging
import sys
from collections.abc import Iterable
from enum import Enum
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import greenlet
import numpy as np
import torch

from gigl_loader.testing.memory_network import MemoryCaller, MemoryListener, MemoryReply
from tests.support.simulation.group import SimulatedGroup
from tests.support.simulation.network import SimulatedNetwork
from tests.support.simulation.workers import SimulatedPool
from tests.support.simulation.world import Process, World, _Task

_APART = (
    World,
    Process,
    _Task,
    greenlet.greenlet,
    SimulatedNetwork,
    SimulatedGroup,
    SimulatedPool,
    MemoryCaller,
    MemoryListener,
    MemoryReply,  # of the simulation
    torch.Tensor,
    np.ndarray,
    torch.Generator,  # of the graph, and seeds
    ModuleType,
    type,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    FrameType,
    Enum,
    logging.Logger,
)


def held_by(*roots: object) -> dict[int, int]:
    """Return the bytes of each Python object that ``roots`` lead to, by its id.

    Tensors and arrays, code, and what stands in for sockets, workers and threads are left out.
    """
    found: dict[int, int] = {}
    todo: list[Any] = list(roots)
    while todo:
        one = todo.pop()
        # what is apart is not walked through either: it leads to all other processes
        if id(one) not in found and not isinstance(one, _APART):
            found[id(one)] = sys.getsizeof(one)
            todo += gc.get_referents(one)
    return found


def own_bytes(held: dict[int, int], others: Iterable[dict[int, int]]) -> int:
    """Return the bytes of what one process holds and none of the others does.

    Names in the code, for example, are there once in this process, where they are in each.
    """
    shared = set().union(*others)
    return sum(size for number, size in held.items() if number not in shared)
