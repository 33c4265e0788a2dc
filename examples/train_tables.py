"""From Parquet to predictions: tables are partitioned, a model is trained, ids come back.

    torchrun --standalone --nproc-per-node 2 examples/train_tables.py
    python examples/train_tables.py            # one process, one partition

Tables of handwritten digits and their nearest neighbours are written as Parquet, with text as ids.
`partition_tables` makes one partition for each rank, which is mapped, not read. Predictions for the
test nodes are written with the ids of the tables, and compared with the labels in the tables.
"""

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.nn.functional as F
from _data import digits
from _ranks import process_group
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    EdgeTable,
    NodeTable,
    on_all_ranks,
    partition_tables,
    shared_folder,
)

CLASSES = 10


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on a graph that lies in Parquet files.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--method", default="ldg", help="how nodes are given to partitions")
    parser.add_argument("--memory", default="1GB", help="for partitioning")
    parser.add_argument("--out", type=Path, default=Path("out/tables"), help="for predictions")
    return parser.parse_args()


def write_tables(folder: Path) -> None:
    """Write the digits graph as a data warehouse would have it: text as ids, several files."""
    graph = digits()
    names = [f"digit_{i:04d}" for i in range(graph.num_nodes)]
    split = [
        "train" if t else "val" if v else "test"
        for t, v in zip(graph.train_mask, graph.val_mask, strict=True)
    ]
    pixels = pa.array(graph.x.tolist(), pa.list_(pa.float32()))
    nodes = pa.table({"name": names, "pixels": pixels, "digit": graph.y.tolist(), "split": split})
    edges = pa.table(
        {
            end: [names[i] for i in row]
            for end, row in zip(("src", "dst"), graph.edge_index.tolist(), strict=True)
        }
    )
    for name, table in (("nodes", nodes), ("edges", edges)):
        (folder / name).mkdir(parents=True)
        half = -(-table.num_rows // 2)
        for i in range(2):
            pq.write_table(table.slice(i * half, half), folder / name / f"{i}.parquet")


def load_partition(args: argparse.Namespace, folder: Path) -> DistDataset:
    """Make the partitions, on the first rank, and map this rank's."""
    if dist.get_rank() == 0:
        write_tables(folder)
        report = partition_tables(
            NodeTable(folder / "nodes", id="name", features="pixels", label="digit", split="split"),
            EdgeTable(folder / "edges"),
            dist.get_world_size(),
            folder / "parts",
            method=args.method,
            memory=args.memory,
        )
        print(report, flush=True)
    dist.barrier()
    return DistDataset.load(folder / "parts", dist.get_rank(), mmap=True)


def train(args: argparse.Namespace, dataset: DistDataset) -> torch.nn.Module:
    torch.manual_seed(0)
    model = GraphSAGE(dataset.node_feature_info.dim, 64, 2, out_channels=CLASSES)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with DistNeighborLoader(
        dataset,
        [10, 10],
        on_all_ranks(dataset.train_node_ids),
        batch_size=64,
        shuffle=True,
        even_ranks="wrap",  # as many steps on all ranks: DDP waits for each
    ) as loader:
        for epoch in range(1, args.epochs + 1):
            for batch in loader:
                out = parallel(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch:2d}/{args.epochs}  loss {loss.item():.4f}", flush=True)
    return model


@torch.no_grad()
def predict(args: argparse.Namespace, dataset: DistDataset, model: torch.nn.Module) -> None:
    """Write this rank's predictions, with the ids that the tables have."""
    model.eval()
    names, found = [], []
    with DistNeighborLoader(
        dataset, [-1, -1], on_all_ranks(dataset.test_node_ids), batch_size=256
    ) as loader:
        for batch in loader:
            seeds = batch.n_id[: batch.batch_size]
            names += dataset.to_original(seeds).tolist()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            found += out.argmax(dim=-1).tolist()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"predictions-{dist.get_rank()}.parquet"
    pq.write_table(pa.table({"name": names, "predicted": found}), path)


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Join the predictions with the tables by id, as their reader would."""
    labels = pq.read_table(folder / "nodes", columns=["name", "digit"]).to_pydict()
    digit = dict(zip(labels["name"], labels["digit"], strict=True))
    paths = [args.out / f"predictions-{rank}.parquet" for rank in range(dist.get_world_size())]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    right = sum(digit[row["name"]] == row["predicted"] for row in rows)
    for row in rows[:3]:
        print(f"{row['name']}: predicted {row['predicted']}, is {digit[row['name']]}")
    print(f"{len(rows)} predictions in {args.out}, test accuracy: {right / len(rows):.4f}")


def main() -> int:
    args = parse_args()
    with process_group(), shared_folder() as position:
        folder = Path(position)
        dataset = load_partition(args, folder)
        predict(args, dataset, train(args, dataset))
        dist.barrier()
        if dist.get_rank() == 0:
            compare(args, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
