"""Runs a script of RelBench 2 with RelBench 3 and a folder: ``python -m ... SCRIPT [ARGUMENT]...``.

Names of RelBench 2 that its scripts use get RelBench 3's meaning. A folder takes the place of a
dataset's name.
"""

import os
import runpy
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

relbench, base = import_module("relbench"), import_module("relbench.base")
graph: Any = import_module("relbench.modeling.graph")


def _module(name: str, **names: Any) -> None:
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(names)


def _task(dataset: str, name: str, **_: Any) -> Any:
    task: Any = relbench.load_dataset(dataset).load_task(name)
    if hasattr(task, "dst_entity_table"):
        tables = task.get_db().table_dict
        task.num_dst_nodes = len(tables[task.dst_entity_table])
    evaluate = task.evaluate

    def with_old_names(*args: Any, **keywords: Any) -> dict[str, float]:
        if len(args) > 1 and getattr(task, "dst_entity_col", None) not in (None, *args[1].df):
            args = args[:1]  # a masked table is the test's
        found = evaluate(*args, **keywords)
        return {{"map": "link_prediction_map"}.get(key, key): value for key, value in found.items()}

    task.evaluate = with_old_names
    return task


def _link_input(table: Any, task: Any) -> Any:
    return THEIRS(table, task, task.num_dst_nodes)


THEIRS = graph.get_link_train_table_input

if __name__ == "__main__":
    _module("relbench.datasets", get_dataset=lambda name, **_: relbench.load_dataset(name))
    _module("relbench.tasks", get_task=_task, get_task_names=lambda _: [])
    _module("text_embedder", GloveTextEmbedding=SimpleNamespace)
    base.TaskType.LINK_PREDICTION = base.TaskType.RECOMMENDATION
    graph.get_link_train_table_input = _link_input
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
