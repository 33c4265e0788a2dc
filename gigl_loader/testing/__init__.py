"""For tests of code that uses gigl_loader: ranks on this machine, tiny graphs, a reference check.

- `run_ranks`: a function on several gloo ranks in processes of their own, without a port, ended as
  soon as one fails; `one_rank`: this process as the only rank;
- `TinyGraph`: graphs whose features are the ids, so that a mix-up shows;
- `batch_digest`: a sha256 of all that a batch holds, to compare runs and machines;
- `check_batch`: what any sampled batch must satisfy, in plain Python;
- `InProcessPeers`, `sample_message`, `as_worker_gets`: samplers of several partitions in one
  process;
- `run_cluster`: a storage and a compute cluster for one function; `free_port`;
- `MemoryNetwork`: the transport in one thread, with a `Clock` of its own;
- `Footprint`: what processes leave behind; `open_files`: what their descriptors lead to;
- `worker_pid`: whom to kill.

Names are imported when they are first used: who starts processes only needs none of torch.
"""

from typing import TYPE_CHECKING

from gigl_loader._lazy import lazy_names

if TYPE_CHECKING:
    from gigl_loader.footprint import Footprint, open_files
    from gigl_loader.testing._cluster import run_cluster
    from gigl_loader.testing._digest import batch_digest
    from gigl_loader.testing._fakes import InProcessPeers, as_worker_gets, sample_message
    from gigl_loader.testing._graphs import TinyGraph
    from gigl_loader.testing._memory_network import Clock, MemoryNetwork
    from gigl_loader.testing._ports import free_port
    from gigl_loader.testing._processes import RankFailed, one_rank, run_ranks
    from gigl_loader.testing._reference import (
        BatchError,
        batch_tensors,
        check_batch,
        check_same_batches,
    )
    from gigl_loader.testing._waiting import wait_until
    from gigl_loader.testing._workers import worker_pid

__all__ = [
    "BatchError",
    "Clock",
    "Footprint",
    "InProcessPeers",
    "MemoryNetwork",
    "RankFailed",
    "TinyGraph",
    "as_worker_gets",
    "batch_digest",
    "batch_tensors",
    "check_batch",
    "check_same_batches",
    "free_port",
    "one_rank",
    "open_files",
    "run_cluster",
    "run_ranks",
    "sample_message",
    "wait_until",
    "worker_pid",
]

_NAMES = {
    "_cluster": ("run_cluster",),
    "_digest": ("batch_digest",),
    "_fakes": ("InProcessPeers", "as_worker_gets", "sample_message"),
    "_graphs": ("TinyGraph",),
    "_memory_network": ("Clock", "MemoryNetwork"),
    "_ports": ("free_port",),
    "_processes": ("RankFailed", "one_rank", "run_ranks"),
    "_reference": ("BatchError", "batch_tensors", "check_batch", "check_same_batches"),
    "_waiting": ("wait_until",),
    "_workers": ("worker_pid",),
}

if not TYPE_CHECKING:  # a type checker that saw it would let every name pass
    __getattr__, __dir__ = lazy_names(
        __name__,
        {name: f"testing.{module}" for module, names in _NAMES.items() for name in names}
        | dict.fromkeys(("Footprint", "open_files"), "footprint"),
    )
