"""Tokens in plain Python: one seed after the other, from the whole graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_geometric.data import HeteroData

Node = tuple[str, int]


@dataclass
class Sequence_:
    """The tokens of one seed."""

    nodes: list[Node]
    hop: dict[Node, int]
    ages: dict[Node, float | None]
    """None: the node has no time."""
    drawn: list[tuple[int, Node, Node]] = field(default_factory=list)
    """(relation, target, neighbour) of each drawn edge."""

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (relation, query, key) of the edges between tokens, each once, in order."""
        place = {node: at for at, node in enumerate(self.nodes)}
        found = {
            (relation, place[target], place[neighbor])
            for relation, target, neighbor in self.drawn
            if target in place and neighbor in place
        }
        yield from sorted(found)

    def walk(self, steps: int) -> list[list[float]]:
        """Return by token the probability to be there after 1, 2... steps from the seed."""
        size = len(self.nodes)
        joined = [set[int]() for _ in range(size)]
        for _, query, key in self.pairs():
            if query != key:
                joined[query].add(key)
                joined[key].add(query)
        now, landing = [1.0] + [0.0] * (size - 1), [[0.0] * steps for _ in range(size)]
        for step in range(steps):
            then = [0.0] * size
            for here, share in enumerate(now):
                for there in joined[here]:
                    then[there] += share / len(joined[here])
                if not joined[here]:
                    then[here] += share
            now = then
            for at in range(size):
                landing[at][step] = now[at]
        return landing


def rows(
    graph: HeteroData, relation: tuple[str, str, str], target: int, until: float | None
) -> list[int]:
    """Return the neighbours of a node that are not later than ``until``, as a draw has them."""
    sources, targets = graph[relation].edge_index.tolist()
    # rows are in the order of the neighbours' ids, rows by time in the order of times
    found = sorted(one for one, other in zip(sources, targets, strict=True) if other == target)
    if until is None or "time" not in graph[relation[0]]:
        return found
    times = graph[relation[0]].time.tolist()
    return sorted((one for one in found if times[one] <= until), key=lambda one: times[one])


def tokens_of(
    graph: HeteroData,
    seed: Node,
    until: float | None,
    fanouts: Mapping[tuple[str, str, str], Sequence[int]],
    *,
    most: int,
    order: str,
) -> Sequence_:
    """Return the tokens of a seed; a fan-out of more than -1 takes the last neighbours by time."""
    relations = sorted(graph.edge_types)
    found = Sequence_([seed], {seed: 0}, {})
    frontier = [seed]
    for hop in range(1, len(fanouts[relations[0]]) + 1):
        reached: list[Node] = []
        for target in frontier:
            for number, relation in enumerate(relations):
                if relation[2] != target[0]:
                    continue
                drawn, fanout = rows(graph, relation, target[1], until), fanouts[relation][hop - 1]
                for source in drawn[-fanout:] if fanout >= 0 else drawn:
                    neighbor = (relation[0], source)
                    found.drawn.append((number, target, neighbor))
                    if neighbor not in found.hop:
                        found.hop[neighbor] = hop
                        reached.append(neighbor)
        found.nodes += reached
        frontier = reached
    for node_type, number in found.nodes:
        timed = until is not None and "time" in graph[node_type]
        age = until - int(graph[node_type].time[number]) if timed and until is not None else None
        found.ages[node_type, number] = age
    if order == "time":
        far = float("inf")
        behind = sorted(
            found.nodes[1:], key=lambda node: far if found.ages[node] is None else _age(found, node)
        )
        found.nodes[1:] = behind
    found.nodes = found.nodes[:most]
    return found


def _age(found: Sequence_, node: Node) -> float:
    age = found.ages[node]
    assert age is not None
    return age


def read(batch: Any, sequence: int) -> dict[str, list[Any]]:
    """Return the real tokens of one sequence of a padded batch, by field; ``node`` by global id."""
    tokens = batch.tokens
    real = range(int(tokens.length[sequence]))
    fields = {
        name: [getattr(tokens, name)[sequence, at].item() for at in real]
        for name in ("type", "row", "hop", "time", "has_time", "score")
    }
    names = [tokens.node_types[number] for number in fields["type"]]
    stores = [batch[name] if isinstance(batch, HeteroData) else batch for name in names]
    fields["node"] = [
        (name, int(store.n_id[row]))
        for name, store, row in zip(names, stores, fields["row"], strict=True)
    ]
    if tokens.pair is not None:
        fields["pair"] = [
            (relation, query, key)
            for at, query, key, relation in tokens.pair.tolist()
            if at == sequence
        ]
    return fields
