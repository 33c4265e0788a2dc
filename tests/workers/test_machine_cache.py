"""One cache for a machine: who makes it, who maps it, and when it is gone."""

import dataclasses
import gc
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ProtocolError
from gigl_loader.memory.mutex import holding
from gigl_loader.sampler.cache_tables import Owner, Table
from gigl_loader.sampler.row_cache import MISSING
from gigl_loader.testing import TinyGraph, open_files
from gigl_loader.transport import Security
from gigl_loader.workers import machine_cache
from gigl_loader.workers.agreement import Agreement, _first_like, _Member
from gigl_loader.workers.machine_cache import MachineCache, cache_of_machine, name_of_rows
from gigl_loader.workers.rendezvous import StoreRendezvous

OWNER: Owner = ("node", NODE)
MATRIX = ("node_features", NODE)


def _tables(capacity: int, num_ids: int = 50) -> dict:
    return {
        OWNER: Table(num_ids=num_ids, capacity=capacity, matrices={MATRIX: ("float32", (2,))},
                     references=100)
    }  # fmt: skip


def _nobody_else(make) -> None:
    return None


def _told(data: bytes, make) -> bytes:
    return data


def _num_held() -> tuple[int, int]:
    """Return how many caches this process has open, and how many it has mapped."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("gigl_loader.rows")
    return sum("gigl_loader.rows" in name for name in open_files()), mapped


def test_what_one_rank_stores_the_other_reads_and_keeps() -> None:
    before = _num_held()  # of tests before this one, should they have left any
    maker = MachineCache.new(_tables(10))
    ids = {OWNER: np.arange(5)}
    other = MachineCache.of(maker.offer, _tables(7))  # it would have kept fewer rows by itself
    assert other.memory.tables[OWNER].capacity == 10
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
    maker = MachineCache.new(_tables(10))
    ids, user = {OWNER: np.arange(5)}, maker.rows.join()
    numbers = [maker.rows.add(user, ids) for _ in range(3)]
    maker.rows.plan(numbers[0], ids)
    killed = os.fork()
    if killed == 0:
        try:
            rank = MachineCache.of(maker.offer, _tables(10))
            with holding(rank.rows._mutex, 10.0):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    assert (maker.rows.plan(numbers[1], ids)[OWNER] == MISSING).all()
    assert (maker.rows.plan(maker.rows.add(user, ids), ids)[OWNER] < MISSING).all()
    assert maker.rows.num_known == 0


def test_a_cache_that_cannot_be_seen_or_is_for_other_rows_is_refused() -> None:
    maker = MachineCache.new(_tables(10))
    offer = maker.offer
    mark = dataclasses.replace(offer.mark, secret=b"another machine's")
    with pytest.raises(OSError, match="cannot be seen"):
        MachineCache.of(dataclasses.replace(offer, mark=mark), _tables(10))
    with pytest.raises(ProtocolError, match="for other rows"):
        MachineCache.of(offer, _tables(10, num_ids=5000))
    with pytest.raises(ProtocolError, match="1 types of rows were offered for 0"):
        MachineCache.of(offer, {})
    for offered in (dataclasses.replace(offer, mark=mark), offer):
        data = msgspec.msgpack.encode(offered)
        found = cache_of_machine(_tables(10, 5000), "x", partial(_told, data))
        assert found.inode != maker.inode, "it has one of its own"


def test_loaders_over_the_same_rows_have_one_cache() -> None:
    first = cache_of_machine(_tables(10), "a", _nobody_else)
    assert cache_of_machine(_tables(10), "a", _nobody_else) is first
    assert cache_of_machine(_tables(10), "b", _nobody_else) is not first
    assert cache_of_machine(_tables(10, 60), "a", _nobody_else) is not first
    inode, offer = first.inode, msgspec.msgpack.encode(first.offer)
    assert cache_of_machine(_tables(10), "a", lambda make: offer) is first
    del first
    gc.collect()
    assert inode not in [one.inode for one in machine_cache._kept.values()]
    assert cache_of_machine(_tables(10), "a", _nobody_else).inode != inode


def test_rows_are_the_same_where_the_tensors_are() -> None:
    graph = TinyGraph.random(20, 60)
    one, other = graph.partitions(2)[0], graph.partitions(2)[0]
    names = [name_of_rows(view) for view in (one.view(), one.view(), other.view())]
    assert names[0] == names[1] != names[2]


def test_the_first_rank_of_a_machine_offers_to_those_that_keep_as_much() -> None:
    views = [part.view() for part in TinyGraph.random(20, 60).partitions(2)]
    offer: Any = object()
    kept = [("a", None, "20%"), ("b", offer, "20%"), ("a", offer, "20%"), ("a", offer, "1"),
            ("a", offer, "20%")]  # fmt: skip
    members = [_Member(0, host, (), there, cache) for host, there, cache in kept]
    assert [_first_like(one, members) for one in members] == [None, 1, 2, 3, 2]
    store = HashStore()
    ranks = [
        Agreement(view, StoreRendezvous(store, rank, 2, 10.0), Security(), "towards")
        for rank, view in enumerate(views)
    ]
    assert ranks[1].share_cache(lambda: pytest.fail("nobody keeps rows")) is None
    for rank in ranks:
        rank._anyone_keeps, rank._first_with_cache = True, 0
    assert ranks[0].share_cache(lambda: b"offer") is None
    assert ranks[1].share_cache(lambda: pytest.fail("not the first")) == b"offer"
    for rank in ranks:
        rank.close()
    assert store.num_keys() == 0


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

    def tables(order: int) -> dict:
        return {
            owner: Table(num_ids=50, capacity=10, references=100,
                         matrices=dict(list(matrices[owner].items())[::order]))
            for owner in owners[::order]
        }  # fmt: skip

    maker = MachineCache.new(tables(1))
    other = MachineCache.of(maker.offer, tables(-1))
    ids: dict[Any, np.ndarray] = {owner: np.arange(5) + at for at, owner in enumerate(owners)}
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
