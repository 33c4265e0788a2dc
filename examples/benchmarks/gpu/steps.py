"""A batch by its steps, on the graphs of the benchmark: what the profiler saw, for each kernel."""

from typing import Any

import torch
from _cases import Case, plain_graph, seeds_of, typed_graph
from _findings import Programme
from _sizes import MLPERF_FANOUT
from torch.profiler import profile

from gigl_loader import DistDataset, DistNeighborLoader

ROWS = 25
"""Operators in a table, those that take longest."""


def _profiled(run: Programme, case: Case, data: Any, kernels: Any) -> dict[str, Any]:
    typed = "R-GAT" in case.name
    seeds = seeds_of(case)
    dataset = DistDataset.from_pyg(data).to(run.device, kernels=kernels)
    with DistNeighborLoader(
        dataset,
        list(case.fanout),
        ("paper", seeds) if typed else seeds,
        batch_size=case.batch_size,
        seed=3,
        num_workers=0,
        pin_memory_device=torch.device(run.device),
    ) as loader:
        taken = iter(loader)
        batch = next(taken)
        found = {"nodes": batch.num_nodes, "edges": batch.num_edges}
        found["ms a batch"] = round(run.timed(lambda: next(taken), 6), 2)
        with profile() as seen:
            for _ in range(2):
                next(taken)
            run.wait()
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
    nodes, degree, dim, size = (500_000, 25, 128, 1024) if run.on_cuda else (2_000, 8, 8, 32)
    for name, fanout, made in (
        ("on the device", (15, 10), plain_graph),
        ("R-GAT, on the device", MLPERF_FANOUT, typed_graph),
    ):
        case = Case(name, run.device, None, nodes, degree, dim, fanout, size, 4, 10, 1, 0)
        data = made(case)
        for kernels in reversed(run.kernels):
            run.attempt(f"{name}, {kernels}", _profiled, run, case, data, kernels)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
