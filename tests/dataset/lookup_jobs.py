"""What the ranks of ``test_lookup.py`` do; a module, so that their processes can import it."""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from gigl_loader import DistFeature
from gigl_loader.testing import TinyGraph

PLAIN = TinyGraph.random(60, 300)
TYPED = TinyGraph.random(40, 200, heterogeneous=True)
BUYS = ("user", "buys", "item")


def rows_of_all_partitions(rank: int, world: int) -> None:
    """Every rank asks for other ids, as many as its number says; the last one for none."""
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(40, (30 * (world - 1 - rank),), generator=generator)
    plain = PLAIN.partitions(world)[rank]
    features, labels = PLAIN.node_rows(next(iter(PLAIN.num_nodes)), ids.tolist())
    for _ in range(2):
        assert plain.get_features(ids).tolist() == features
    assert plain.get_labels(ids).tolist() == labels
    typed = TYPED.partitions(world)[rank]
    for name in ("user", "item"):
        features, labels = TYPED.node_rows(name, ids.tolist())
        assert typed.get_features(ids, name).tolist() == features
        assert typed.get_labels(ids, name).tolist() == labels
    edges = DistFeature(typed, "edge_features")
    wanted = TYPED.edge_rows(BUYS, ids.tolist())
    assert edges[BUYS, ids].tolist() == wanted
    assert edges.async_get(ids, BUYS).wait().tolist() == wanted


def after_another_group(rank: int, world: int) -> None:
    """What was agreed on in a group is not used in the next one."""
    plain = PLAIN.partitions(world)[rank]
    assert plain.get_features(torch.tensor([3])).tolist() == [[3, 0]]
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    dist.destroy_process_group()
    again = PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=world)
    assert plain.get_features(torch.tensor([4])).tolist() == [[4, 0]]
