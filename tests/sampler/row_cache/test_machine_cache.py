"""One memory for a machine: who makes it, who maps it, for which rows, and when it is gone."""

import gc
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import Matrix, Owner, Row
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import UsageError
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.sampler.row_cache import machine_cache
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.machine_cache import (
    MachineRows,
    RowsClaim,
    memory_for,
    name_of_rows,
    shared_memory,
)
from gigl_loader.sampler.row_cache.tables import RowTable, RowTables
from gigl_loader.testing import TinyGraph, open_files
from tests.sampler.row_cache.cache_cases import num_known

OWNER: Owner = ("node", NODE)
MATRIX = ("node_features", NODE)
CONFIG = SimpleNamespace(with_edge=False, collect_features=True)


def _told(data: bytes, make: Any) -> bytes:
    """Return what another process of the machine tells."""
    return data


def _tables(capacity: int, num_ids: int = 50) -> RowTables:
    matrices: dict[Matrix, Row] = {MATRIX: ("float32", (2,))}
    table = RowTable(num_ids=num_ids, capacity=capacity, matrices=matrices, references=100)
    return RowTables({OWNER: table})


def _opened(first: MachineRows, tables: RowTables) -> MachineRows:
    """Return the memory as another process has it."""
    second = MachineRows.of(first.offer("rows"))
    assert second.cache(tables) is second.rows
    return second


def _nobody_else(make) -> None:
    return None


def _num_held() -> tuple[int, int]:
    """Return how many caches this process has open, and how many it has mapped."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("gigl_loader.rows")
    return sum("gigl_loader.rows" in name for name in open_files()), mapped


def test_what_one_rank_stores_the_other_reads_and_keeps() -> None:
    before = _num_held()  # of tests before this one, should they have left any
    maker = memory_for(_tables(10))
    ids = {OWNER: np.arange(5)}
    other = _opened(maker, _tables(7))  # it would have kept fewer rows by itself
    assert other.shared.tables[OWNER].capacity == 10
    assert (maker.rows.join(), other.rows.join()) == (0, 1)
    plan = maker.rows.plan(maker.rows.add(0, ids), ids)[OWNER]
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    maker.rows.store(OWNER, -2 - plan, ids[OWNER], {MATRIX: values}, np.arange(5))
    del maker
    gc.collect()
    plan = other.rows.plan(other.rows.add(1, ids), ids)[OWNER]
    assert other.rows.absent(OWNER, plan, ids[OWNER]).size == 0
    assert np.array_equal(other.rows.rows(OWNER, MATRIX)[plan], values)
    assert other.rows.num_users == 2
    del other
    assert _num_held() == before


@pytest.mark.multiprocess
def test_a_rank_that_is_killed_while_it_holds_the_lock_is_survived() -> None:
    """The others go on with an empty cache, and what they had known before is fetched."""
    maker = memory_for(_tables(10))
    ids, user = {OWNER: np.arange(5)}, maker.rows.join()
    numbers = [maker.rows.add(user, ids) for _ in range(3)]
    maker.rows.plan(numbers[0], ids)
    killed = os.fork()
    if killed == 0:
        try:
            rank = _opened(maker, _tables(10))
            with rank.rows.mutex.held(10.0):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    assert (maker.rows.plan(numbers[1], ids)[OWNER] == RowCache.MISSING).all()
    assert (maker.rows.plan(maker.rows.add(user, ids), ids)[OWNER] < RowCache.MISSING).all()
    assert num_known(maker.rows) == 0


def test_memory_that_cannot_be_seen_or_is_for_other_rows_is_not_used() -> None:
    maker = memory_for(_tables(10))
    offer = maker.offer("rows")
    hidden = replace(offer, mark=replace(offer.mark, secret=b"another machine's"))
    with pytest.raises(OSError, match="cannot be seen"):
        MachineRows.of(hidden)
    opened = MachineRows.of(offer)
    with pytest.raises(UsageError, match="has no cache"):
        _ = opened.rows
    (table,) = _tables(10).values()
    more = RowTables({**_tables(10), ("node", "else"): table})
    for tables in (_tables(10, num_ids=5000), more):
        assert opened.cache(tables) is None
        assert memory_for(tables, opened) is not opened, "it has one of its own"
    assert memory_for(_tables(7), opened) is opened
    for offered in (hidden, replace(offer, machine="another one"), replace(offer, what="else")):
        data = msgspec.msgpack.encode(offered)
        found = shared_memory(_tables(10), "x", partial(_told, data))
        assert found.region.inode != maker.region.inode, "it has one of its own"
    found = shared_memory(_tables(10), "x", lambda make: b"no offer")
    assert num_known(found.rows) == 0


def test_who_is_first_to_know_the_rows_makes_the_cache_and_others_map_it() -> None:
    first = MachineRows.new()
    second = MachineRows.of(first.offer("rows"))
    made, ids = second.cache(_tables(10)), {OWNER: np.arange(5)}
    assert made is not None
    made.plan(made.add(made.join(), ids), ids)
    seen = first.cache(_tables(10))
    assert seen is not None
    assert first.cache(_tables(10)) is seen
    assert (seen.plan(seen.add(seen.join(), ids), ids)[OWNER] > RowCache.MISSING).all()
    assert seen.num_users == 2
    del first, second, made, seen
    gc.collect()
    assert not [one for one in open_files() if "gigl_loader.rows" in one]


def _shared(tables: RowTables, name: str) -> MachineRows:
    return shared_memory(tables, name, lambda make: None)


def test_loaders_over_the_same_rows_have_one_memory() -> None:
    before = _num_held()
    first = _shared(_tables(10), "a")
    assert _shared(_tables(10), "a") is first
    assert _shared(_tables(10), "b") is not first
    assert _shared(_tables(10, 60), "a") is not first
    offers: list[bytes] = []
    shared_memory(_tables(10), "a", lambda make: offers.append(make()))
    assert shared_memory(_tables(10), "a", lambda make: offers[0]) is first
    inode = first.region.inode
    del first
    gc.collect()
    assert _num_held() == before, "nobody keeps it"
    assert _shared(_tables(10), "a").region.inode != inode


def test_the_first_rank_decides_how_much_is_kept() -> None:
    """Whoever maps the memory first: it is as large before any other rank can see it."""
    others: list[MachineRows] = []

    def share(make) -> None:
        """Let another rank map the memory as soon as it is offered."""
        others.append(MachineRows.of(msgspec.msgpack.decode(make(), type=machine_cache.RowsOffer)))
        assert others[0].cache(_tables(7)) is not None

    first = shared_memory(_tables(10), "first", share)
    for one in (first, *others):
        assert one.shared.tables[OWNER].capacity == 10


def test_rows_are_the_same_where_the_tensors_are() -> None:
    graph = TinyGraph.random(20, 60)
    one, other = graph.partitions(2)[0], graph.partitions(2)[0]
    names = [name_of_rows(view) for view in (one.view(), one.view(), other.view())]
    assert names[0] == names[1] != names[2]


def test_ranks_need_not_name_their_types_in_one_order() -> None:
    """Where each table and matrix lies must not depend on the order of a rank's dicts."""
    owners = [("node", "paper"), ("node", "author")]
    matrices: Any = {
        owner: {
            ("node_features", owner[1]): ("float32", (2,)),
            ("node_labels", owner[1]): ("int64", ()),
        }
        for owner in owners
    }

    def tables(order: int) -> RowTables:
        return RowTables(
            {
                owner: RowTable(
                    num_ids=50,
                    capacity=10,
                    references=100,
                    matrices=dict(list(matrices[owner].items())[::order]),
                )
                for owner in owners[::order]
            }
        )

    maker = memory_for(tables(1))
    other = _opened(maker, tables(-1))
    ids: dict[Any, Any] = {owner: np.arange(5) + at for at, owner in enumerate(owners)}
    user = maker.rows.join()
    plans = maker.rows.plan(maker.rows.add(user, ids), ids)
    values = {
        owner: {
            matrix: np.full((5, *shape), 10 * at + position, dtype)
            for position, (matrix, (dtype, shape)) in enumerate(matrices[owner].items())
        }
        for at, owner in enumerate(owners)
    }
    for owner in owners:
        maker.rows.store(owner, -2 - plans[owner], ids[owner], values[owner], np.arange(5))
    plans = other.rows.plan(other.rows.add(user, ids), ids)
    for owner in owners:
        assert other.rows.absent(owner, plans[owner], ids[owner]).size == 0
        for matrix, stored in values[owner].items():
            assert np.array_equal(other.rows.rows(owner, matrix)[plans[owner]], stored)


class _Cluster:
    """What rows belong to."""


def test_ranks_agree_on_the_first_one_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [_Cluster() for _ in range(3)]
    sizes = [CacheOptions(size=0.2), CacheOptions(size=0.2), CacheOptions(size=1000)]
    ranks = [
        RowsClaim.of_store(one, size, CONFIG) for one, size in zip(clusters, sizes, strict=True)
    ]
    offers = [rank.offer for rank in ranks]
    assert offers[0] is not None
    away = replace(offers[0], machine="another one")
    firsts = machine_cache.RowsOffer.firsts([None, *offers, away])
    assert firsts == [offers[0]], "of what nobody else wants nothing has to be said"
    memories = [rank.agreed(firsts) for rank in ranks]
    inodes = [memory.region.inode for memory in memories]
    assert inodes[0] == inodes[1] != inodes[2]
    again = [RowsClaim.of_store(one, sizes[0], CONFIG).memory for one in clusters]
    assert again[:2] == memories[:2], "another loader of the same process"
    assert again[2] not in memories, "of another size"
    hidden = replace(offers[0], mark=replace(offers[0].mark, secret=b"another machine's"))
    other = RowsClaim.of_store(_Cluster(), sizes[0], CONFIG)
    own = other.memory
    assert other.agreed([hidden]) is own
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    assert other.offer is None
    assert other.agreed(firsts) is own
