"""Write ``dgl.tar.gz``: partitions of the graphs of `foreign_cases`, by DGL 2.1.

Run in an environment of Python 3.11 with dgl==2.1.0, torch==2.2.1, torchdata==0.7.1, numpy<2,
pandas<3, packaging, pyyaml, pydantic and setuptools, with ``PYTHONPATH=.``.
"""

import tarfile
import tempfile
from pathlib import Path

import dgl
import numpy as np
import torch
from dgl.data.utils import save_tensors
from dgl.distributed import partition_graph

from tests.partitioning.foreign_cases import Case, plain, typed


def _graph(case: Case) -> dgl.DGLGraph:
    counts = {key: len(rows["feat"]) for key, rows in case.nodes.items()}
    ends = {key: tuple(torch.from_numpy(rows["ends"])) for key, rows in case.edges.items()}
    graph = dgl.heterograph(ends, num_nodes_dict=counts)
    for key, rows in case.nodes.items():
        for name, values in rows.items():
            graph.nodes[key].data[name] = torch.from_numpy(np.array(values))
    for edge_type, rows in case.edges.items():
        for name in ("score", "feat"):
            graph.edges[edge_type].data[name] = torch.from_numpy(rows[name])
    return graph


def _write(folder: Path) -> None:
    torch.manual_seed(0)
    root = folder / "typed"
    nodes, _ = partition_graph(_graph(typed()), "shop", 2, str(root), return_mapping=True)
    torch.save(nodes, root / "node_mapping.pt")  # as GraphStorm does, beside other JSON files
    (root / "edge_label_stats.json").write_text("{}")
    arguments = {"part_method": "random", "return_mapping": True}
    root = folder / "compressed"
    nodes, _ = partition_graph(
        _graph(plain()), "plain", 3, str(root), graph_formats="csc", **arguments
    )
    start = 0
    for k in range(3):  # as DGL's distributed pipeline does
        stop = (
            start
            + dgl.distributed.load_partition_book(str(root / "plain.json"), k)[0].metadata()[k][
                "num_nodes"
            ]
        )
        save_tensors(str(root / f"part{k}/orig_nids.dgl"), {"_N": nodes[start:stop]})
        start = stop
    root = folder / "one"
    partition_graph(_graph(plain()), "one", 1, str(root), graph_formats=["csr", "csc"])


with tempfile.TemporaryDirectory() as folder:
    _write(Path(folder))
    with tarfile.open(Path(__file__).with_name("dgl.tar.gz"), "w:gz") as archive:
        for path in sorted(Path(folder).iterdir()):
            archive.add(path, path.name)
