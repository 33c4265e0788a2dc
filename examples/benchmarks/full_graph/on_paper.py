"""What training on the whole graph sends, on paper: bytes by layer and machine, and seconds.

    python examples/benchmarks/full_graph/on_paper.py --machines 128 --gbit 100

The defaults are those of SAR (Mostafa, MLSys 2022) on ogbn-papers100M. Nodes are dealt at random:
the worst case; `--kept` is the share of neighbours that a better partitioning keeps together.
"""

import argparse
import math
from dataclasses import dataclass


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bytes of an epoch over the whole graph.")
    parser.add_argument("--machines", type=int, default=128)
    parser.add_argument("--nodes", type=float, default=111.06e6)
    parser.add_argument("--edges", type=float, default=1.616e9)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 256], help="per layer")
    parser.add_argument("--item-bytes", type=int, default=4, help="of a value: 4 is float32")
    parser.add_argument("--kept", type=float, default=0.0, help="share of edges within a partition")
    parser.add_argument("--gbit", type=float, default=100.0, help="of a machine's link, per second")
    return parser.parse_args(argv)


@dataclass(frozen=True)
class Layer:
    """What one layer brings to one machine."""

    width: int
    forward_bytes: float
    backward_bytes: float
    """Gradients go back the same way, but for the features, which need none."""


def halo_rows(args: argparse.Namespace) -> float:
    """Return the different nodes of other machines that a machine's edges start at.

    Of ``n`` nodes, ``m`` edges with sources drawn at random reach ``n (1 - exp(-m / n))``.
    """
    crossing = args.edges / args.machines * (1.0 - args.kept)
    if args.kept == 0.0:
        crossing *= 1.0 - 1.0 / args.machines
    others = args.nodes * (1.0 - 1.0 / args.machines)
    return float(others * -math.expm1(-crossing / others))


def layers(args: argparse.Namespace) -> list[Layer]:
    """Return what each layer moves to one machine in an epoch."""
    halo = halo_rows(args)
    sizes = [halo * width * args.item_bytes for width in args.widths]
    return [
        Layer(width, size, size if index else 0.0)
        for index, (width, size) in enumerate(zip(args.widths, sizes, strict=True))
    ]


def main() -> None:
    args = parse_args()
    print(
        f"{args.nodes / args.machines / 1e6:.2f} million own nodes, "
        f"{args.edges / args.machines / 1e6:.1f} million edges into them, "
        f"halo {halo_rows(args) / 1e6:.2f} million nodes"
    )
    total = 0.0
    for number, layer in enumerate(layers(args), 1):
        moved = layer.forward_bytes + layer.backward_bytes
        total += moved
        print(
            f"layer {number}, {layer.width} wide: {layer.forward_bytes / 1e9:.1f} GB forward, "
            f"{layer.backward_bytes / 1e9:.1f} GB backward"
        )
    seconds = total * 8 / (args.gbit * 1e9)
    print(
        f"an epoch: {total / 1e9:.1f} GB to each machine, {seconds:.1f} s at {args.gbit:g} Gbit/s"
    )


if __name__ == "__main__":
    main()
