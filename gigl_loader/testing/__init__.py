"""Helpers for tests of code that uses gigl_loader: local ranks, tiny graphs, a reference check.

- `run_ranks`: a function on several gloo ranks in separate processes, without a port; all end as
  soon as one fails; `one_rank`: this process as the only rank;
- `TinyGraph`: graphs whose features are the ids, so that a mix-up shows;
- `batch_digest`: a sha256 of the whole contents of a batch, to compare runs and machines;
- `check_batch`: the rules for any sampled batch, in plain Python;
- `InProcessPeers`, `sample_message`, `as_worker_gets`: samplers of several partitions in one
  process;
- `run_cluster`: a storage and a compute cluster for one function; `free_port`;
- `MemoryNetwork`: the transport in one thread, with a `Clock` of its own;
- `Footprint`: leftovers of processes; `open_files`: the targets of their descriptors;
- `worker_pid`: the process to kill.

Names are listed in ``__init__.pyi`` and imported on first use: a script that only starts processes
does without torch.
"""

from gigl_loader.runtime.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
