"""The migration pages name every argument of the loaders that people come from."""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
import torch_geometric.loader as pyg

import gigl_loader
import gigl_loader.runtime.glt_classes  # makes graphlearn-torch importable
from gigl_loader.dataset.schema import EdgeDir

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGE = "\n".join((GUIDE / f"{name}.md").read_text() for name in ("migrating", "from_glt"))
OURS = {
    name: set(inspect.signature(getattr(gigl_loader, name)).parameters)
    for name in ("DistNeighborLoader", "DistLinkNeighborLoader", "DistSubGraphLoader")
}
GLT = {
    "DistNeighborLoader": "dist_neighbor_loader",
    "DistLinkNeighborLoader": "dist_link_neighbor_loader",
    "DistSubGraphLoader": "dist_subgraph_loader",
}


def rows(title: str) -> dict[str, str]:
    """Return what the table below ``title`` says of each argument."""
    section = PAGE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, text = line.strip("| ").split(" | ", 1)
            for name in re.findall(r"`(\w+)`", names):
                assert name not in found, f"{name} is in two rows"
                found[name] = text
    return found


def arguments(kind: Any) -> set[str]:
    """Return the names that ``kind`` takes, without what it hands on."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {one.name for one in parameters if one.kind != one.VAR_KEYWORD} - {"self"}


@pytest.mark.parametrize(
    ("title", "kind", "ours"),
    [
        ("`NeighborLoader` of PyG", pyg.NeighborLoader, "DistNeighborLoader"),
        ("`HGTLoader` of PyG", pyg.HGTLoader, "DistNeighborLoader"),
        (
            "`DataLoader` of torch, which these take besides",
            torch.utils.data.DataLoader,
            "DistNeighborLoader",
        ),
    ],
)
def test_pyg(title: str, kind: Any, ours: str) -> None:
    _check(rows(title), arguments(kind), ours)


def test_pyg_links() -> None:
    """The table has what `NeighborLoader` has not; both tables together are all."""
    told = rows("`LinkNeighborLoader` of PyG")
    shared = rows("`NeighborLoader` of PyG")
    names = arguments(pyg.LinkNeighborLoader)
    assert not set(told) & set(shared)
    told |= {name: text for name, text in shared.items() if name in names}
    _check(told, names, "DistLinkNeighborLoader")


@pytest.mark.parametrize("name", GLT)
def test_graphlearn_torch(name: str) -> None:
    """Its Python layer is what the rows are of; without it they name what it had."""
    told = rows("The loaders of graphlearn-torch")
    if importlib.util.find_spec("graphlearn_torch") is None:
        told = {one: text for one, text in told.items() if not text.startswith("the same")}
        _check(told, set(told), name)
        return
    modules = {
        one: importlib.import_module(f"graphlearn_torch.distributed.{GLT[one]}") for one in GLT
    }
    names = {one: arguments(getattr(module, one)) for one, module in modules.items()}
    assert set(told) == set().union(*names.values())
    _check({one: text for one, text in told.items() if one in names[name]}, names[name], name)


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_graphlearn_torch_swaps_the_rows_of_links_where_the_page_says_it(edge_dir: EdgeDir) -> None:
    row = next(
        line for line in PAGE.splitlines() if line.startswith("| `batch.edge_label_index` |")
    )
    assert "homogeneous graph, whatever the `edge_dir`, and" in row
    transform = importlib.import_module("graphlearn_torch.loader.transform")
    glt = importlib.import_module("graphlearn_torch.sampler")
    none, links = torch.empty(0, dtype=torch.int64), torch.tensor([[0, 1], [2, 3]])
    how = {"metadata": {"edge_label_index": links}, "device": torch.device("cpu")}
    # no edge_dir is asked for
    plain = transform.to_data(glt.SamplerOutput(none, none, none, **how))
    assert plain.edge_label_index.tolist() == links.flip(0).tolist()
    edge_type = ("user", "buys", "item")
    counts = {"num_sampled_edges": {edge_type: none}, "num_sampled_nodes": {}}
    typed = glt.HeteroSamplerOutput(
        {}, {}, {}, batch={}, edge_types=[], input_type=edge_type, **counts, **how
    )
    found = transform.to_hetero_data(typed, edge_dir=edge_dir)
    if edge_dir == "in":
        assert found[edge_type].edge_label_index.tolist() == links.tolist()
    else:
        reverse = ("item", "rev_buys", "user")
        assert found[reverse].edge_label_index.tolist() == links.flip(0).tolist()


def _check(told: dict[str, str], names: set[str], ours: str) -> None:
    assert set(told) == names, f"not on the page, or gone: {set(told) ^ names}"
    for name, text in told.items():
        assert text.strip()
        if text.startswith("the same"):
            assert name in OURS[ours], f"{ours} has no {name}"
