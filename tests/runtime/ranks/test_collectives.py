"""What ranks tell each other, and where it lies meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError
from gigl_loader.runtime.ranks import collectives as ranks
from gigl_loader.runtime.ranks.collectives import (
    backends_of,
    broadcast_value,
    check_same_options,
    decide_with_ranks,
    exchanged_on,
    gather_from_ranks,
)
from gigl_loader.testing import run_ranks


def _tell_each_other(rank: int, world: int) -> None:
    """Values of every length, none too; the longest on each of the ranks once."""
    for longest in range(world):
        value = [rank] * (300 if rank == longest else rank)
        wanted = [[r] * (300 if r == longest else r) for r in range(world)]
        assert gather_from_ranks(value, world, list[int]) == wanted
        group: Any = dist.group.WORLD
        assert ranks.gather_values(value, world, list[int], group) == wanted
        seen: list[Any] = []

        def decide(found: list[list[int]], seen: list[Any] = seen) -> dict[str, int]:
            seen.append(found)
            return {"sum": sum(map(sum, found))}

        outcome = decide_with_ranks(value, world, list[int], decide, dict[str, int])
        assert outcome == {"sum": sum(map(sum, wanted))}
        assert seen == ([wanted] if rank == 0 else []), "rank 0 alone has all of them"
        assert broadcast_value(value, world, list[int]) == wanted[0]
    assert gather_from_ranks(None, world, str | None) == [None] * world


@pytest.mark.multiprocess
def test_values_of_every_rank(tmp_path: Path) -> None:
    run_ranks(_tell_each_other, world_size=3, tmp_path=tmp_path)


def test_one_rank_needs_no_group() -> None:
    assert gather_from_ranks("a", 1, str) == ["a"]
    assert broadcast_value("a", 1, str) == "a"
    assert decide_with_ranks("a", 1, str, lambda found: found * 2, list[str]) == ["a", "a"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: gather_from_ranks("a", 2, str),
        lambda: broadcast_value("a", 2, str),
        lambda: decide_with_ranks("a", 2, str, lambda found: "b", str),
    ],
)
def test_a_group_that_breaks_is_named(ask: Any, group: "_Group") -> None:
    group.fails = "Connection closed by peer"
    with pytest.raises(PeerError, match=r"broke while its ranks agreed .*Connection closed"):
        ask()


class _Group:
    """A process group whose collectives change nothing, or fail as the test says."""

    def __init__(self) -> None:
        self.backends, self.fails = "cpu:gloo", ""
        self.waits: list[Any] = []
        self.options: Any = None
        self.allreduce = self.allgather = self.broadcast = self.gather = self._collective

    def _collective(self, *args: Any) -> "_Group":
        self.options = args[-1]
        return self

    def wait(self, *timeout: Any) -> None:
        self.waits.append(timeout)
        if self.fails:
            raise RuntimeError(self.fails)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> _Group:
    """The process group that this process is in."""
    found = _Group()
    names = SimpleNamespace(
        group=SimpleNamespace(WORLD=found),
        get_backend_config=lambda group: found.backends,
        get_rank=lambda group=None: 0,
        ReduceOp=dist.ReduceOp,
    )
    monkeypatch.setattr(ranks, "dist", names)
    return found


def test_a_rank_that_was_not_heard_is_waited_for_shortly(group: _Group) -> None:
    broadcast_value("a", 2, str)  # all come: whoever was suspected before is no more
    group.waits.clear()
    broadcast_value("a", 2, str)
    assert group.waits == [(), ()], "its length and it: as long as the group allows"
    ranks.suspect_ranks("worker 3 of rank 1 did not answer")
    group.fails = "timed out"
    with pytest.raises(PeerTimeoutError, match=r"within 30 s .*worker 3 of rank 1 did not"):
        broadcast_value("a", 2, str)
    assert group.options.timeout.total_seconds() == ranks.SUSPECTED_S
    ((limit,),) = group.waits[2:]
    assert limit.total_seconds() > ranks.SUSPECTED_S, "gloo's own error comes first"
    group.fails = ""
    broadcast_value("a", 2, str)
    assert group.waits[3:] == [(limit,), ()], "all have come: nobody is suspected any more"


def test_options_that_differ_are_named_with_their_ranks() -> None:
    check_same_options([{"seed": "1"}, {"seed": "1"}], "shard='world'")
    with pytest.raises(
        ConfigError,
        match=r"takes the same seed on all ranks, got 1 on ranks "
        r"\[0, 2\]; 2 on ranks \[1\]",
    ):
        check_same_options([{"seed": "1"}, {"seed": "2"}, {"seed": "1"}], "shard='world'")
    with pytest.raises(ConfigError, match=r"None on ranks \[0\]; 3 on ranks \[1\]"):
        check_same_options([{}, {"batch_size": "3"}], "shard='world'")


@pytest.mark.parametrize(
    ("config", "backends", "cpu", "meta"),
    [
        ("cpu:gloo,cuda:gloo", {"cpu": "gloo"}, "cpu", "cpu"),
        ("cpu:gloo,meta:nccl", {"cpu": "gloo", "meta": "nccl"}, "cpu", "meta"),
        ("meta:nccl", {"meta": "nccl"}, "meta", "meta"),
    ],
)
def test_where_tensors_lie_while_they_are_exchanged(
    config: str, backends: dict[str, str], cpu: str, meta: str, group: _Group
) -> None:
    group.backends = config
    assert backends_of() == backends
    assert exchanged_on(torch.device("cpu")).type == cpu
    assert exchanged_on(torch.device("meta")).type == meta


def test_a_group_without_a_backend_for_the_cpu_says_what_to_add(group: _Group) -> None:
    group.backends = "cuda:gloo"
    with pytest.raises(ConfigError, match=r"add one, as in init_process_group.*cpu:gloo,cuda:nccl"):
        exchanged_on(torch.device("cpu"))
