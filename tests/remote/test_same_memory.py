"""Batches of a storage server on this machine: read where they lie, and never written over."""

import ctypes
import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from store_cluster import compute, info_of, processes, serve

from gigl_loader import RemoteDistDataset
from gigl_loader._glt import NodeSamplerInput
from gigl_loader.graph_store import DistServer
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.memory.channel import field_of
from gigl_loader.memory.leases import ServerMemory, tensors_over
from gigl_loader.memory.same_host import HostMark, Mappings, sees
from gigl_loader.memory.slots import SlotWriter
from gigl_loader.testing import batch_tensors, wait_until


def _write(writer: SlotWriter, memory: ServerMemory, value: float):
    written = writer.write([field_of("x", torch.full((1000,), value))])
    packed = memory.open(0, written)
    if written.fd is not None:
        os.close(written.fd)
    return packed


def test_a_mark_is_seen_by_who_can_map_it() -> None:
    mark, other = HostMark(), HostMark()
    assert sees(mark.mark)
    assert not sees(replace(mark.mark, secret=other.mark.secret))
    assert not sees(replace(mark.mark, region=replace(mark.mark.region, pid=2**22 + 1)))
    mark.close()
    mark.close()
    assert not sees(mark.mark)
    other.close()


def test_a_slot_is_written_again_when_it_was_given_back_and_never_when_it_was_lost() -> None:
    writer, memory, mappings = SlotWriter(), ServerMemory(4), Mappings(most_idle=0)
    packed, dropped = _write(writer, memory, 1.0), []
    assert memory.leased_bytes > 0
    place = packed.lease.lend()
    assert memory.leased_bytes == 0, "what a client reads is not queued any more"
    read = tensors_over(mappings.lease(place, lambda: dropped.append(1)), packed.layout)["x"]
    part = read[10:20]
    del read
    assert memory.returned(0, 4) == ([], [])
    assert not dropped, "a view of the tensor keeps the memory"
    del part
    assert dropped == [1]
    del packed  # as the server does when it is told
    assert memory.returned(0, 4) == ([0], [])
    writer.give_back([0], [])
    packed = _write(writer, memory, 2.0)
    kept = tensors_over(mappings.lease(packed.lease.lend(), lambda: None), packed.layout)["x"]
    packed.lease.poison()  # the client left, and still reads
    del packed
    assert memory.returned(0, 4) == ([], [0]), "given up, not written again"
    writer.give_back([], [0])
    for value in range(3, 9):
        del_me = _write(writer, memory, float(value))
        assert float(tensors_over(del_me.payload, del_me.layout)["x"][0]) == value
        del del_me
    assert torch.equal(kept, torch.full((1000,), 2.0))
    memory.close()
    assert torch.equal(kept, torch.full((1000,), 2.0))


def test_mappings_are_used_again_and_the_longest_idle_go() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("gigl_loader.slot")

    gc.collect()  # what tests before this one left goes now, and not while it is counted
    before, mappings = mapped(), Mappings(most_idle=2)
    stores = [(SlotWriter(), ServerMemory(4)) for _ in range(4)]
    packed = [_write(*store, float(i)) for i, store in enumerate(stores)]
    own = mapped() - before  # by the writers and by the server's side
    places = [one.lease.lend() for one in packed]
    leases = [mappings.lease(place, lambda: None) for place in places]
    assert mapped() - before - own == 4
    addresses = [ctypes.addressof(lease) for lease in leases]
    while leases:
        leases.pop(0)
    assert mapped() - before - own == 2
    again = mappings.lease(places[3], lambda: None)
    assert ctypes.addressof(again) == addresses[3]
    assert float(tensors_over(again, packed[3].layout)["x"][5]) == 3.0
    mappings.close()
    assert mapped() - before - own == 1
    del again
    assert mapped() - before - own == 0


def _client(info, rank: int, folder: Path) -> None:
    """Rank 0 keeps batches, and leaves; rank 1 goes on with the workers that both shared."""
    remote = RemoteDistDataset(info, rank)
    nodes, schema = remote.fetch_node_ids(), remote.fetch_schema()
    options = BaseDistLoader.create_graph_store_worker_options(
        dataset=remote, compute_rank=rank, worker_key="both", num_workers=1, worker_concurrency=2,
        channel_size="64MB", prefetch_size=3,
    )  # fmt: skip
    loader = BaseDistLoader(
        remote, [NodeSamplerInput(nodes[0], "default_homogeneous_node_type")], schema, options,
        BaseDistLoader.create_sampling_config([3, 2], schema, 1, seed=7), torch.device("cpu"),
        BaseDistLoader.resolve_runtime(), DistServer.create_sampling_producer,
    )  # fmt: skip
    if rank == 0:
        kept = list(loader)
        assert loader._channel._servers[0].same_host, "this test is about that"
        copies = [{k: _copy(v) for k, v in batch_tensors(b).items()} for b in kept]
        loader.shutdown()
        globals()["_kept"] = (kept, copies, folder)
        dist.barrier()
        return
    first = list(loader)
    dist.barrier()
    wait_until(lambda: (folder / "left").exists(), "rank 0 has left")
    for _ in range(6):  # written into whatever slots are free by now
        assert len(list(loader)) == len(first)
    (folder / "written").touch()
    loader.shutdown()


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def _keep_and_leave(info, rank: int, folder: Path) -> None:
    compute(info, rank, _client, folder)
    if rank == 0:  # the links are closed
        kept, copies, _ = globals()["_kept"]
        (folder / "left").touch()
        wait_until(lambda: (folder / "written").exists(), "rank 1 has read more epochs")
        for batch, copy in zip(kept, copies, strict=True):
            for name, value in batch_tensors(batch).items():
                assert not isinstance(value, torch.Tensor) or torch.equal(value, copy[name]), name


@pytest.mark.multiprocess
def test_what_a_client_keeps_stays_right_after_it_has_left(tmp_path: Path) -> None:
    info = info_of(1, 2)
    with processes(tmp_path) as started:
        roles = [started.start(serve, info, 0)]
        roles += [started.start(_keep_and_leave, info, rank, tmp_path) for rank in range(2)]
        started.join(roles)
