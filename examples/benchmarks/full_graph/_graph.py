"""The random graph of these benchmarks, and how large it is."""

import argparse
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_geometric.data import Data

EDGES_PER_NODE = 20


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Let the command line say how large the graph is."""
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, help=f"default: {EDGES_PER_NODE} for each node")
    parser.add_argument("--width", type=int, default=100)


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what the command line says, with the number of edges in it."""
    args = parser.parse_args()
    args.edges = args.edges or EDGES_PER_NODE * args.nodes
    return args


def make_graph(args: argparse.Namespace) -> "Data":
    """Return edges between nodes drawn uniformly, and normal features."""
    from torch_geometric.data import Data  # here: ranks that load partitions need none of it

    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(args.nodes, args.width, generator=generator),
        edge_index=torch.randint(args.nodes, (2, args.edges), generator=generator),
    )
