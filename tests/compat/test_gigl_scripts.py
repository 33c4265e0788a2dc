"""GiGL's 13 example scripts import, and the eight colocated ones train and infer to their end.

Unedited, on small tasks. They are read with GiGL's models, losses, metadata and exporters from the
git directory that ``GIGL_REPOSITORY`` names; without one these tests are left out. Its
``gigl.distributed`` is not read and means `gigl_loader`; `gigl_stand_ins` takes the place of the
cloud and of TensorFlow.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.compat.gigl_tree import run_python, write_tree
from tests.support import records

EdgeType = tuple[str, str, str]
CITES: list[EdgeType] = [("page", "cites", "page")]
TO: list[EdgeType] = [("user", "to", "story"), ("story", "to", "user")]
USES = ("training", "inference")
NUM_NODES = {"page": 60, "user": 80, "story": 80}
ARGUMENTS = {
    "num_neighbors": "[10, 10]",  # more than a node has: nothing is drawn
    "sampling_workers_per_process": "1",
    "sampling_worker_shared_channel_size": "64MB",
    "num_max_train_batches": "4",
    "num_val_batches": "2",
    "val_every_n_batch": "2",
    "num_classes": "3",
    "num_val": "0.2",
    "num_test": "0.2",
    "local_world_size": "2",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("gigl"))


# --- tasks ----------------------------------------------------------------------------------------


def _rows(count: int) -> list[list[float]]:
    return [[math.sin(i + 1), math.cos(i + 1)] for i in range(count)]


def _ends(triple: EdgeType, per_node: int) -> tuple[list[int], list[int]]:
    """Return edges of which each node has ``per_node``, in and out."""
    src, _, dst = triple
    ends = [
        (i, (i * 7 + step * step + 1) % NUM_NODES[dst])
        for i in range(NUM_NODES[src])
        for step in range(per_node)
    ]
    return [one for one, _ in ends], [other for _, other in ends]


def _write_nodes(folder: Path, count: int) -> dict[str, Any]:
    rows = [{"nid": i, "f": row, "c": i % 3} for i, row in enumerate(_rows(count))]
    records.write(folder / "n-00000-of-00001.tfrecord", rows)
    return {
        "nodeIdKey": "nid",
        "featureKeys": ["f"],
        "labelKeys": ["c"],
        "featureDim": 2,
        "tfrecordUriPrefix": f"{folder}/",
    }


def _write_edges(folder: Path, triple: EdgeType, per_node: int) -> dict[str, Any]:
    rows = [{"s": s, "t": t} for s, t in zip(*_ends(triple, per_node), strict=True)]
    records.write(folder / "e-00000-of-00001.tfrecord", rows)
    return {"tfrecordUriPrefix": f"{folder}/"}


def _write_task(root: Path, triples: list[EdgeType], per_node: int, *, labels: bool) -> None:
    """Write a task of nodes, or of labels of the first edge type."""
    types = list(dict.fromkeys(triples[0][::2]))
    edges = {}
    for number, triple in enumerate(triples):
        info = _write_edges(root / f"edges{number}", triple, per_node)
        edges[str(number)] = {"srcNodeIdKey": "s", "dstNodeIdKey": "t", "mainEdgeInfo": info}
    if labels:
        edges["0"]["positiveEdgeInfo"] = _write_edges(root / "labels", triples[0], 2)
    nodes = {str(k): _write_nodes(root / name, NUM_NODES[name]) for k, name in enumerate(types)}
    fields = ("srcNodeType", "relation", "dstNodeType")
    named = [dict(zip(fields, triple, strict=True)) for triple in triples]
    supervision: dict[str, Any] = {"nodeBasedTaskMetadata": {"supervisionNodeTypes": types}}
    if labels:
        anchors = {"supervisionEdgeTypes": named[:1]}
        supervision = {"nodeAnchorBasedLinkPredictionTaskMetadata": anchors}
    tables = {
        name: {"embeddingsPath": f"p.d.{name}", "predictionsPath": f"p.d.{name}"} for name in types
    }
    files = {
        "preprocessed": {
            "condensedNodeTypeToPreprocessedMetadata": nodes,
            "condensedEdgeTypeToPreprocessedMetadata": edges,
        },
        "task": {
            "graphMetadata": {
                "nodeTypes": types,
                "edgeTypes": named,
                "condensedNodeTypeMap": {str(k): name for k, name in enumerate(types)},
                "condensedEdgeTypeMap": {str(k): name for k, name in enumerate(named)},
            },
            "taskMetadata": supervision,
            "trainerConfig": {"trainerArgs": ARGUMENTS},
            "inferencerConfig": {"inferencerArgs": ARGUMENTS, "inferenceBatchSize": 8},
            "sharedConfig": {
                "preprocessedMetadataUri": f"{root}/preprocessed.yaml",
                "inferenceMetadata": {"nodeTypeToInferencerOutputInfoMap": tables},
                "trainedModelMetadata": {
                    "trainedModelUri": f"{root}/model.pt",
                    "evalMetricsUri": f"{root}/metrics.json",
                },
            },
        },
        "resources": {
            "sharedResourceConfig": {"commonComputeConfig": {"tempAssetsBucket": "gs://bucket"}}
        },
    }
    for name, content in files.items():
        (root / f"{name}.yaml").write_text(yaml.safe_dump(content))


# --- runs -----------------------------------------------------------------------------------------

WHOLE = """
import json, sys
import torch
from torch_geometric.data import Data, HeteroData

import gigl.distributed.utils
from examples.link_prediction import models as link_models
from examples.node_classification import models as node_models
from examples.tutorial.KDD_2025.utils import init_model
from gigl.src.common.types.graph_data import EdgeType

scripts, path, graph = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
state, cpu = torch.load(path), torch.device("cpu")
rows = {name: torch.tensor(values) for name, values in graph["rows"].items()}
edges = {EdgeType(*name): torch.tensor(ends) for name, ends in graph["edges"]}
if "tutorial" in scripts:
    model = init_model()
    model.load_state_dict(state)
    found = model.eval()(rows, {tuple(name): ends for name, ends in edges.items()})
elif "heterogeneous" in scripts:
    data = HeteroData({name: {"x": values} for name, values in rows.items()})
    for name, ends in edges.items():
        data[tuple(name)].edge_index = ends
    model = link_models.init_example_gigl_heterogeneous_model(
        dict.fromkeys(rows, 2), dict.fromkeys(edges, 0), state_dict=state
    )
    found = model.eval()(data=data, device=cpu, output_node_types=list(rows))
else:
    data = Data(x=rows["page"], edge_index=next(iter(edges.values())))
    if "link" in scripts:
        model = link_models.init_example_gigl_homogeneous_model(2, 0, state_dict=state)
        found = {"page": model.eval()(data=data, device=cpu)}
    else:
        model = node_models.init_example_gigl_homogeneous_node_classification_model(
            2, 3, state_dict=state
        )
        found = {"page": model.eval()(data=data, device=cpu).argmax(1)}
print(json.dumps({name: values.tolist() for name, values in found.items()}))
"""
"""What a trained model says of the whole graph, without loaders."""


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_scripts_of_the_graph_store_import(tree: Path, tmp_path: Path) -> None:
    names = [f"{kind}_{use}" for kind in ("homogeneous", "heterogeneous") for use in USES]
    package = "examples.link_prediction.graph_store"
    text = f"""
from {package} import storage_main, {", ".join(names)}
import gigl.distributed, gigl_loader
assert homogeneous_training.DistABLPLoader is gigl_loader.DistABLPLoader
assert gigl.distributed.DistNeighborLoader is gigl_loader.DistNeighborLoader
"""
    run_python(tree, tmp_path, "-c", text)


@pytest.mark.parametrize(
    ("scripts", "triples", "column"),
    [
        ("node_classification.homogeneous", CITES, "pred"),
        ("link_prediction.homogeneous", CITES, "emb"),
        ("link_prediction.heterogeneous", TO, "emb"),
        ("tutorial.KDD_2025.heterogeneous", TO, "emb"),
    ],
)
def test_scripts_train_and_infer_to_their_end(
    tree: Path, tmp_path: Path, scripts: str, triples: list[EdgeType], column: str
) -> None:
    is_tutorial = "tutorial" in scripts
    per_node = 2 if is_tutorial else 4  # its fanout is fixed
    _write_task(tmp_path, triples, per_node, labels="node" not in scripts)
    task, cloud = f"--task_config_uri={tmp_path}/task.yaml", tmp_path / "cloud"
    cloud.mkdir()
    run_python(tree, tmp_path, "-m", f"examples.{scripts}_training", task)
    for_inference = ["--job_name=job", f"--embedding_output_uri={cloud}"]
    run_python(tree, tmp_path, "-m", f"examples.{scripts}_inference", task, *for_inference)

    types = sorted({*triples[0][::2]})
    if not is_tutorial:  # which neither measures nor has a table
        metrics = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
        assert all(math.isfinite(float(one["numberValue"])) for one in metrics)
        loaded = [json.loads(line)[1] for line in _lines(cloud / "bigquery.jsonl")]
        assert sorted(loaded) == [f"p.d.enumerated_{name}" for name in types]
    found: dict[str, dict[int, Any]] = {}
    for file in cloud.rglob("*.avro"):
        for record in map(json.loads, _lines(file)):
            own = found.setdefault(record["node_type"].removeprefix("node_"), {})
            assert own.setdefault(record["node_id"], record[column]) is record[column]
    graph = {
        "rows": {name: _rows(NUM_NODES[name]) for name in types},
        "edges": [(triple, _ends(triple, per_node)) for triple in triples],
    }
    command = ["-c", WHOLE, scripts, f"{tmp_path}/model.pt", json.dumps(graph)]
    expected = json.loads(run_python(tree, tmp_path, *command)[0].splitlines()[-1])
    assert sorted(found) == types
    for name, own in found.items():
        assert sorted(own) == list(range(NUM_NODES[name]))  # each node once
        rows = [own[node] for node in range(NUM_NODES[name])]
        np.testing.assert_allclose(rows, expected[name], rtol=1e-4, atol=1e-5)
