"""The memory that ranks of a machine keep rows in: who opens whose, and for which rows."""

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gigl_loader.message import NODE
from gigl_loader.options import SAME_MEMORY_VARIABLE, CacheOptions
from gigl_loader.rowcache.cache import MISSING
from gigl_loader.rowcache.machine_rows import MachineRows, OwnRows, firsts_of_machines
from gigl_loader.rowcache.tables import Owner, Table
from gigl_loader.testing import open_files

OWNER: Owner = ("node", NODE)
CONFIG = SimpleNamespace(with_edge=False, collect_features=True)


class _Cluster:
    """What rows belong to."""


def _tables(capacity: int) -> dict:
    matrices: Any = {("node_features", NODE): ("float32", (2,))}
    return {OWNER: Table(num_ids=50, capacity=capacity, matrices=matrices, references=100)}


def test_who_is_first_to_know_the_rows_makes_the_cache_and_others_map_it() -> None:
    first = MachineRows.new()
    second = MachineRows.of(first.offer("rows"))
    made, ids = second.cache(_tables(10)), {OWNER: np.arange(5)}
    assert made is not None
    made.plan(made.add(made.join(), ids), ids)
    seen = first.cache(_tables(10))
    assert seen is not None
    assert first.cache(_tables(10)) is seen
    assert (seen.plan(seen.add(seen.join(), ids), ids)[OWNER] > MISSING).all()
    assert seen.num_users == 2
    assert first.cache(_tables(11)) is None, "it is for other rows"
    del first, second, made, seen
    gc.collect()
    assert not [one for one in open_files() if "gigl_loader.rows" in one]


def test_ranks_whose_batches_name_types_in_another_order_find_the_same_rows() -> None:
    """As a sampler of the user's own may on one rank: the tables lie one after the other."""
    matrices: Any = {("edge_features", "to"): ("float64", (3,))}
    wide = Table(num_ids=9, capacity=4, matrices=matrices, references=50)
    tables, ids = {**_tables(10), ("edge", "to"): wide}, np.array([7])
    first = MachineRows.new()
    second = MachineRows.of(first.offer("rows"))
    made, seen = first.cache(tables), second.cache(dict(reversed(tables.items())))
    assert made is not None
    assert seen is not None
    for number, owner in enumerate(tables):
        for matrix, rows in made.tables[owner].rows.items():
            rows[...] = number
            assert (seen.tables[owner].rows[matrix] == number).all()
    plan = made.plan(made.add(made.join(), {OWNER: ids}), {OWNER: ids})[OWNER]
    assert (seen.tables[OWNER].holders[-2 - plan] == ids).all()


def test_ranks_agree_on_the_first_one_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [_Cluster() for _ in range(3)]
    sizes = [CacheOptions(size=0.2), CacheOptions(size=0.2), CacheOptions(size=1000)]
    ranks = [OwnRows.of(one, size, CONFIG) for one, size in zip(clusters, sizes, strict=True)]
    offers = [rank.offer for rank in ranks]
    assert offers[0] is not None
    away = replace(offers[0], machine="another one")
    firsts = firsts_of_machines([None, *offers, away])
    assert firsts == [offers[0]], "of what nobody else wants nothing has to be said"
    memories = [rank.agreed(firsts) for rank in ranks]
    inodes = [memory.region.inode for memory in memories]
    assert inodes[0] == inodes[1] != inodes[2]
    again = [OwnRows.of(one, sizes[0], CONFIG).memory for one in clusters]
    assert again[:2] == memories[:2], "another loader of the same process"
    assert again[2] not in memories, "of another size"
    hidden = replace(offers[0], mark=replace(offers[0].mark, secret=b"another machine's"))
    other = OwnRows.of(_Cluster(), sizes[0], CONFIG)
    own = other.memory
    assert other.agreed([hidden]) is own
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    assert other.offer is None
    assert other.agreed(firsts) is own
