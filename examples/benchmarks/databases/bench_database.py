"""A database to a graph: CPU seconds and memory beside RelBench's `make_pkey_fkey_graph`.

Writes a folder of customers, articles and transactions (two keys, a time in nanoseconds, a number,
a category), then runs each side in a process of its own::

    python bench_database.py --rows 20000000 --reference /path/to/venv/bin/python

``--reference`` is a Python with relbench 3.0.2 and pandas 2.3.3; left out, only ours is measured.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TIME, DAY = 1_577_836_800, 86_400
TABLES = {
    "customers": {"pkey": "customer_id", "time_col": None, "fkeys": {}},
    "articles": {"pkey": "article_id", "time_col": None, "fkeys": {}},
    "transactions": {
        "pkey": None,
        "time_col": "t_dat",
        "fkeys": {"customer_id": "customers", "article_id": "articles"},
    },
}


def write_folder(folder: Path, rows: int) -> None:
    """Write the database: a tenth as many customers as transactions, and a fiftieth articles."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, customers, articles = np.random.default_rng(0), max(1, rows // 10), max(1, rows // 50)

    def times(count: int) -> Any:
        seconds = np.sort(draw.integers(0, 365 * DAY * 10**9, count)) + TIME * 10**9
        return pa.array(seconds, pa.timestamp("ns"))

    def chosen(names: list[str], count: int) -> Any:
        return pa.array(names).take(pa.array(draw.integers(0, len(names), count)))

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "db").mkdir(parents=True)
    tables = {
        "customers": {
            "customer_id": np.arange(customers),
            "age": draw.integers(18, 90, customers).astype(float),
            "joined": times(customers),
        },
        "articles": {
            "article_id": np.arange(articles),
            "price": draw.random(articles),
            "group": chosen(["shoes", "shirts", "hats"], articles),
        },
        "transactions": {
            "customer_id": draw.integers(0, customers, rows),
            "article_id": draw.integers(0, articles, rows),
            "t_dat": times(rows),
            "price": draw.random(rows),
            "channel": chosen(["web", "shop", "app"], rows),
        },
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / "db" / f"{name}.parquet")
    # JSON is YAML; all rows are before the test time
    manifest = {
        "name": "shop",
        "manifest_version": 1,
        "val_timestamp": "2020-10-01",
        "test_timestamp": "2022-01-01",
        "tables": TABLES,
    }
    (folder / "manifest.yaml").write_text(json.dumps(manifest))


def measured(what: Callable[[], Any]) -> dict[str, float]:
    """Return CPU and wall seconds of a call, and the peak of memory above what was in use."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    cpu, wall = time.process_time(), time.monotonic()
    what()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.monotonic() - wall, 2),
        "peak_mb": round((peak - before) / 1e6),
    }


def ours(folder: Path, root: Path, memory: str) -> dict[str, Any]:
    """Measure the first call, with partitions written; the second; and the first batch."""
    import torch

    from gigl_loader import DistDataset, DistNeighborLoader

    found: dict[str, Any] = {}
    kept: list[Any] = []
    if not root.exists():
        call: dict[str, Any] = {"root": root, "memory": memory, "progress": False}
        return {"build": measured(lambda: DistDataset.from_database(folder, **call))}
    found["open"] = measured(
        lambda: kept.append(DistDataset.from_database(folder, root=root, progress=False))
    )

    def batch() -> None:
        seeds = torch.arange(512)
        with DistNeighborLoader(
            kept[0],
            [10, 10],
            input_nodes=("customers", seeds),
            batch_size=512,
            num_workers=0,
            time_attr="time",
            input_time=torch.full((512,), TIME + 300 * DAY),
        ) as loader:
            next(iter(loader))

    return {**found, "first_batch": measured(batch)}


def theirs(folder: Path, *, repaired: bool) -> dict[str, Any]:
    """Measure RelBench's graph; ``repaired``: without the arrays for each value in statistics."""
    warnings.filterwarnings("ignore")
    import pandas
    from relbench import load_dataset
    from relbench.modeling.graph import make_pkey_fkey_graph
    from relbench.modeling.utils import get_stype_proposal
    from torch_frame.data import stats

    if repaired:  # what pytorch-frame's #449 does, in effect

        class Numpy:
            def __getattr__(self, name: str) -> Any:
                return hstack if name == "hstack" else getattr(np, name)

        def hstack(values: Any) -> Any:
            plain = isinstance(values, np.ndarray) and values.dtype.kind in "fiu"
            return values if plain else np.hstack(values)

        stats.np = Numpy()
    dataset, kept = load_dataset(str(folder)), list[Any]()
    found = {"pandas": pandas.__version__, "read": measured(lambda: kept.append(dataset.get_db()))}
    kinds = get_stype_proposal(kept[0])
    found["graph"] = measured(lambda: kept.append(make_pkey_fkey_graph(kept[0], kinds)))
    return found


def main() -> None:
    """Run both sides, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("database_benchmark"))
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--reference", help="a Python with relbench 3.0.2 and pandas 2.3.3")
    parser.add_argument("--side", choices=("ours", "theirs", "repaired"))
    args = parser.parse_args()
    source, root = args.folder / "shop", args.folder / "root"
    if args.side == "ours":
        print(json.dumps(ours(source, root, args.memory)))
        return
    if args.side is not None:
        print(json.dumps(theirs(source, repaired=args.side == "repaired")))
        return
    write_folder(source, args.rows)
    shutil.rmtree(root, ignore_errors=True)
    runs = [("ours", sys.executable), ("ours", sys.executable)]
    runs += [(side, args.reference) for side in ("repaired", "theirs") if args.reference]
    for side, python in runs:
        command = [python, __file__, "--side", side, "--folder", str(args.folder)]
        done = subprocess.run(
            [*command, "--memory", args.memory], check=True, stdout=subprocess.PIPE, text=True
        )
        print(side, done.stdout.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
