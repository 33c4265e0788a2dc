"""What time, disjoint trees and LABOR cost and save: the sampler alone, kinds in alternation."""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset
from gigl_loader.batch.message import SEED_TIME, BatchTicket, Field
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.runtime.memory import segments
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import as_worker_gets

KINDS: dict[str, dict[str, Any]] = {
    "merged, any time": {},
    "disjoint, any time": {"disjoint": True},
    "by time, uniform": {"time_attr": "when"},
    "by time, last": {"time_attr": "when", "temporal_strategy": "last"},
    "by time, a tree for each time": {"time_attr": "when", "disjoint": "by_time"},
    "LABOR": {"sampling_method": "labor"},
}
SEED_TIME_VALUE = 990
_SLOT_BYTES = 1 << 30


def make_dataset(num_nodes: int, num_edges: int) -> DistDataset:
    """Return a random graph with hubs, times of edges from 0 to 999, and 64 features per node."""
    generator = torch.Generator().manual_seed(0)
    ends = (torch.rand((2, num_edges), generator=generator) ** 2 * num_nodes).long()
    when = torch.randint(1000, (num_edges,), generator=generator)
    return DistDataset.from_pyg(Data(x=torch.zeros(num_nodes, 64), edge_index=ends, when=when))


def samplers(dataset: DistDataset, fanout: list[int]) -> dict[str, NeighborSampler]:
    """Return a sampler of each kind."""
    view = as_worker_gets(dataset.view_by_time("when"))
    return {
        name: NeighborSampler(
            view,
            SamplingPlan(
                input_type=DEFAULT_HOMOGENEOUS_NODE_TYPE,
                fanouts={DEFAULT_HOMOGENEOUS_EDGE_TYPE: tuple(fanout)},
                seed=1,
                with_edge=True,
                expansion=ExpansionOptions(**how),
            ),
            None,
        )
        for name, how in KINDS.items()
    }


def write(fields: Sequence[Field], slot: np.ndarray) -> dict[str, np.ndarray]:
    """Write a batch into memory that was used before, as workers do: fresh memory costs more."""
    message, at = {}, 0
    for field in fields:
        nbytes = segments.nbytes_of(field.dtype, field.shape)
        out = segments.array_in(slot[at : at + nbytes].data, field.dtype, field.shape, 0)
        field.write(out)
        message[field.key], at = out, at + -(-nbytes // 64) * 64
    return message


def main() -> None:
    """Print a row per kind; every edge that was drawn by time is checked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-nodes", type=int, default=200_000)
    parser.add_argument("--num-edges", type=int, default=5_000_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    args = parser.parse_args()
    kinds = samplers(make_dataset(args.num_nodes, args.num_edges), args.fanout)
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    nodes: dict[str, list[int]] = {name: [] for name in kinds}
    edges: dict[str, list[int]] = {name: [] for name in kinds}
    slot = np.ones(_SLOT_BYTES, np.uint8)
    order = np.random.default_rng(0).permutation(args.num_nodes)
    for batch in range(args.batches):
        seeds = np.resize(order[batch * args.batch_size :], args.batch_size)
        times = np.full(seeds.size, SEED_TIME_VALUE)
        ticket = BatchTicket(0, 1, 0, batch)
        for name, sampler in kinds.items():
            request = SampleRequest(ticket, seeds, np.arange(seeds.size), {SEED_TIME: times})
            started = time.thread_time()
            message = write(sampler.sample(request), slot)
            spent[name].append(time.thread_time() - started)
            nodes[name].append(message["n_id"].size)
            edges[name].append(message["e_id"].size)
            if "time_attr" in KINDS[name]:
                assert bool((message["@when"] <= SEED_TIME_VALUE).all()), "later than its seed"
    print("| kind | CPU ms per batch | of merged | nodes | edges |")
    print("| --- | --- | --- | --- | --- |")
    merged = spent["merged, any time"][1:]
    for name in kinds:
        own = spent[name][1:]
        share = statistics.median(a / b for a, b in zip(merged, own, strict=True))
        cpu_ms = f"{statistics.median(own) * 1e3:.1f} | {share:.2f}"
        found = f"{statistics.mean(nodes[name]):,.0f} | {statistics.mean(edges[name]):,.0f}"
        print(f"| {name} | {cpu_ms} | {found} |")
    drawn = sum(count for name in kinds if "time_attr" in KINDS[name] for count in edges[name])
    print(f"\n{drawn:,} draws by time, none later than its seed")


if __name__ == "__main__":
    main()
