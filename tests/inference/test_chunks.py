"""Chunks of destinations with all that a layer reads, against the whole graph."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.partition.adjacency import EdgeBlock
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.inference.graph_sources import PartitionGraph
from gigl_loader.inference.layers import Chunk, ChunkReader, LayerInputs
from gigl_loader.inference.modules import Norm
from gigl_loader.inference.rank_rows import OwnedRows
from gigl_loader.runtime.memory.tensors import each_tensor
from tests.inference import full_jobs, typed_layers
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples

BUYS, BOUGHT, KNOWS = typed_layers.BUYS, typed_layers.BOUGHT, typed_layers.KNOWS


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 3), st.integers(0, 99), st.integers(1, 25), st.data())
def test_chunks_are_all_edges_and_rows_whatever_others_have_done(
    world: int, seed: int, batch_size: int, draw: st.DataObject
) -> None:
    data = full_jobs.graph(seed, num_nodes=40, num_edges=120)
    done = [draw.draw(st.sets(st.integers(0, 5))) for _ in range(world)]
    scale = torch.arange(40.0)

    def job(exchange: ThreadExchange) -> list[Any]:
        graph: Any = PartitionGraph(full_jobs.partition(data, exchange.rank, world), exchange)
        reader = ChunkReader(graph, NODE, exchange, batch_size)
        norm = Norm(EDGE, False, 1.0, False)
        reads = LayerInputs(
            graph.features(),
            weight=True,
            attr=True,
            degrees={norm: OwnedRows(scale[reader.own_ids])},
        )
        found = []
        for chunk in reader.read(reads, done[exchange.rank]):
            ids, edges = chunk.n_id[NODE], chunk.edges[EDGE]
            assert torch.equal(ids[: chunk.num_dst], reader.own_ids[chunk.start : chunk.stop])
            assert torch.equal(chunk.x[NODE], data.x[ids])
            assert torch.equal(chunk.degrees[norm], scale[ids])
            counts = torch.bincount(edges.edge_index[1], minlength=chunk.num_dst)
            assert torch.equal(edges.indptr.diff(), counts)
            pairs = torch.stack([ids[edges.edge_index[0]], ids[edges.edge_index[1]]])
            found.append((chunk.index, pairs, edges.weights, edges.attr))
        indices = [index for index, *_ in found]
        assert indices == [i for i in range(reader.num_chunks) if i not in done[exchange.rank]]
        covered = [reader.own_ids[slice(*reader.bounds(i))] for i in indices]
        return [torch.cat([*covered, reader.own_ids[:0]]), found]

    parts = run_threads(world, job)
    nodes = torch.cat([ids for ids, _ in parts])
    found = [edges for _, chunks in parts for edges in chunks]
    into = torch.isin(data.edge_index[1], nodes)
    pairs = torch.cat([data.edge_index[:, :0], *(one[1] for one in found)], 1)
    order = torch.argsort(pairs[1] * 40 + pairs[0], stable=True)
    assert torch.equal(pairs[:, order], data.edge_index[:, into])
    for position, wanted in ((2, data.edge_weight), (3, data.edge_attr)):
        values = torch.cat([wanted[:0], *(one[position] for one in found)])
        assert torch.equal(values[order], wanted[into])


def test_only_types_that_have_rows_are_read() -> None:
    data = typed_layers.graph()

    def job(exchange: ThreadExchange) -> None:
        graph: Any = PartitionGraph(typed_layers.partition(data, exchange.rank, 2), exchange)
        reader = ChunkReader(graph, "user", exchange, 7)
        rows = graph.features()
        for chunk in reader.read(LayerInputs(rows), set()):
            assert set(chunk.edges) == {BOUGHT, KNOWS}
            assert set(chunk.x) == set(chunk.n_id) == {"user", "item"}
            assert torch.equal(chunk.x["item"], data["item"].x[chunk.n_id["item"]])
            assert chunk.edges[KNOWS].weights is None
        for chunk in reader.read(LayerInputs({"item": rows["item"]}), set()):
            assert set(chunk.edges) == {BOUGHT}
            assert set(chunk.x) == {"item"}
            assert len(chunk.n_id["user"]) == chunk.num_dst, "the destinations have no rows"

    run_threads(2, job)


def test_an_error_of_reading_comes_where_the_chunk_is_asked_for() -> None:
    data = full_jobs.graph()

    class Broken(OwnedRows):
        left = 2

        def part(self, *args: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError("the disk is gone")
            return super().part(*args)

    def job(exchange: ThreadExchange) -> int:
        graph: Any = PartitionGraph(full_jobs.partition(data, 0, 1), exchange)
        reader = ChunkReader(graph, NODE, exchange, 10)
        chunks = reader.read(LayerInputs({NODE: Broken(data.x)}), set())
        next(chunks)
        next(chunks)
        with pytest.raises(OSError, match="the disk is gone"):
            next(chunks)
        return 1

    assert run_threads(1, job) == [1]


def test_map_changes_every_tensor_and_nothing_else() -> None:
    one = torch.ones(1)
    edges = EdgeBlock(one, one, None, one)
    chunk = Chunk(3, 10, 12, NODE, {NODE: one}, {EDGE: edges}, {NODE: one}, {})
    seen: list[Any] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor + len(seen)

    found = each_tensor(chunk, count)
    assert (found.index, found.start, found.stop, found.num_dst) == (3, 10, 12, 2)
    assert len(seen) == 5
    assert found.edges[EDGE].weights is None
    values = [found.x[NODE], *vars(found.edges[EDGE]).values(), found.n_id[NODE]]
    assert sorted(int(v) for v in values if v is not None) == [2, 3, 4, 5, 6]
    assert found.x[NODE].item() == 2, "in the order in which it is filled again"
