"""Write ``tensorflow.tar.gz``: the graph ``typed`` of `foreign_cases` as TFRecords, by TensorFlow.

Run in an environment with tensorflow-cpu, with ``PYTHONPATH=.``. Names of features
are those of GiGL's examples. Users are plain files, items are compressed.
"""

import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.partitioning.foreign_cases import BUYS, typed


def _example(values: dict[str, Any]) -> bytes:
    feature = {}
    for name, given in values.items():
        flat = np.atleast_1d(given)
        if flat.dtype.kind == "f":
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
        elif flat.dtype.kind == "i":
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
        else:
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"text"]))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def _write(folder: Path, rows: list[dict[str, Any]], files: int, compression: str = "") -> None:
    folder.mkdir(parents=True)
    end = ".gz" if compression else ""
    for k, some in enumerate(np.array_split(np.arange(len(rows)), files)):
        name = folder / f"data-{k:05}-of-{files:05}.tfrecord{end}"
        with tf.io.TFRecordWriter(str(name), tf.io.TFRecordOptions(compression)) as writer:
            for row in some:
                writer.write(_example(rows[row]))


def _write_all(root: Path) -> None:
    case = typed()
    for node_type, columns in case.nodes.items():
        rows = [
            {
                "node_id": np.int64(i),
                "wide": columns["feat"][i, :2],
                "last": columns["feat"][i, 2],
                "age": np.int64(columns["age"][i]),
                "name": "text",
            }
            | ({"label": columns["label"][i]} if "label" in columns else {})
            for i in range(len(columns["feat"]))
        ]
        compression = "GZIP" if node_type == "item" else ""
        _write(root / "nodes" / node_type, rows, 2, compression)
    for edge_type, columns in case.edges.items():
        rows = [
            {
                "src": columns["ends"][0, i],
                "dst": columns["ends"][1, i],
                "score": columns["score"][i],
            }
            for i in range(len(columns["score"]))
        ]
        _write(root / "edges" / edge_type[1], rows, 3)
        if edge_type == BUYS:
            _write(root / "edges" / "positive", rows[::5], 1, "GZIP")
            _write(root / "edges" / "negative", rows[1::7], 1)


with tempfile.TemporaryDirectory() as folder:
    _write_all(Path(folder))
    with tarfile.open(Path(__file__).with_name("tensorflow.tar.gz"), "w:gz") as archive:
        for path in sorted(Path(folder).iterdir()):
            archive.add(path, path.name)
