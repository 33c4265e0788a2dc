"""Time, memory and scratch of `partition_tables` for graphs that were not run, from measured costs.

The costs are read off runs of `bench_tables.py`: change them for another machine::

    python examples/benchmarks/tables/on_paper.py [--disk 0.2]
"""

import argparse
from dataclasses import dataclass

GRAPHS = {
    "papers100M": (111_059_956, 1_615_685_872, 111_059_956 * 128 * 4),
    "MAG240M": (244_160_499, 1_728_364_232, 121_751_666 * 768 * 2),
}
"""Nodes, edges, bytes of features; ids are int64."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds and bytes of one thing, on two cores."""

    node_s: float
    """Dictionary and index, of a node."""
    edge_s: float
    """Look-up, file of the partition, and sort, of an edge."""
    byte_s: float
    """A byte of features read, placed and added to a checksum."""
    scratch_node: float
    """Bytes of a node's id and number."""
    scratch_edge: float
    """Bytes of an edge on its way, and of its spilled sort."""
    index_node: float = 16.0
    """Bytes of a node in the index."""
    base_bytes: float = 100e6
    """Of memory, for libraries."""


MEASURED = Costs(
    node_s=5.4 / 10e6,
    edge_s=27.2 / 100e6,
    byte_s=6.7 / 1.28e9 + 2.7 / 2.0e9,
    scratch_node=12,
    scratch_edge=8 + 16 / 4,
)
"""Of 10 million nodes with text ids and 64 float16, 100 million edges, 4 partitions, 2 GB; a sort
spills the edges of a partition."""


def predict(nodes: int, edges: int, features: int, costs: Costs) -> tuple[float, float, float]:
    """Return seconds, bytes of memory and bytes of scratch.

    Memory is what keeps the index; half of it is left for everything else. With less, the engine's
    join does the same and takes several times as long.
    """
    seconds = nodes * costs.node_s + edges * costs.edge_s + features * costs.byte_s
    memory = 2 * nodes * costs.index_node + costs.base_bytes
    scratch = nodes * (costs.scratch_node + costs.index_node) + edges * costs.scratch_edge
    return seconds, memory, scratch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disk", type=float, default=0.2, help="GB/s that the disk writes")
    args = parser.parse_args()
    print("| graph | nodes | edges | features, GB | minutes | memory, GB | scratch, GB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, (nodes, edges, features) in GRAPHS.items():
        seconds, memory, scratch = predict(nodes, edges, features, MEASURED)
        written = (features + 4 * edges + 8 * nodes + scratch) / (args.disk * 1e9)
        print(
            f"| {name} | {nodes / 1e6:.0f} M | {edges / 1e9:.2f} G | {features / 1e9:.0f} "
            f"| {max(seconds, written) / 60:.0f} | {memory / 1e9:.1f} | {scratch / 1e9:.0f} |"
        )


if __name__ == "__main__":
    main()
