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

Names are listed in ``__init__.pyi`` and imported when they are first used: a script that only
starts processes does without torch.
"""

from gigl_loader._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
