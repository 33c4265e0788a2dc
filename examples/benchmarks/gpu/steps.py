"""A batch by its steps, on the graphs of the benchmark: what the profiler saw, for each kernel."""

from dataclasses import replace
from typing import Any

import torch
from _cases import own_loader, plain_graph, typed_graph
from _findings import Programme, wait
from _sizes import Case, case_of
from torch.profiler import profile

from gigl_loader import DistDataset
from gigl_loader.sampler.gpu.kernel_choice import kinds_on

ROWS = 25
"""Operators in a table, those that take longest."""


def _profiled(run: Programme, case: Case, data: Any, seeds: Any, kernels: Any) -> dict[str, Any]:
    dataset = DistDataset.from_pyg(data).to(run.device, kernels=kernels)
    with own_loader(case, dataset, seeds) as loader:
        taken = iter(loader)
        batch = next(taken)
        found = {"nodes": batch.num_nodes, "edges": batch.num_edges}
        found["ms a batch"] = round(run.timed(lambda: next(taken), 6), 2)
        with profile() as seen:
            for _ in range(2):
                next(taken)
            wait(run.device)
    rows = seen.key_averages()
    found["CUDA graphs launched in 2 batches"] = sum(
        row.count for row in rows if row.key == "cudaGraphLaunch"
    )
    if run.on_cuda:
        found["peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    order = "self_cuda_time_total" if run.on_cuda else "self_cpu_time_total"
    print(f"# {case.name}, {kernels}", rows.table(sort_by=order, row_limit=ROWS), sep="\n")
    return found


def main() -> int:
    """Profile each; return the exit status."""
    run = Programme(__doc__)
    for name, made in (("on the device", plain_graph), ("R-GAT, on the device", typed_graph)):
        case = case_of(name, run.device)
        # the graphs and rows that fit into a minute
        case = replace(case, nodes=min(case.nodes, 500_000), dim=min(case.dim, 128))
        data, nodes = made(case), torch.arange(case.nodes)
        seeds = ("paper", nodes) if made is typed_graph else nodes
        for kernels in reversed(kinds_on(torch.device(run.device))):
            run.attempt(f"{name}, {kernels}", _profiled, run, case, data, seeds, kernels)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
