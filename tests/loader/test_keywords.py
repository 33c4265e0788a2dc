"""The keywords that loaders share are declared once, and shown by all of them."""

import inspect
import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
import torch_geometric.loader as pyg

from gigl_loader import ConfigError, DistABLPLoader, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.keywords import (
    ANSWERS,
    CHANGE_NOTHING,
    DEPRECATED,
    GROUPS,
    KEYWORDS,
    AllKeywords,
    LoaderKeywords,
)
from gigl_loader.loader.node_loader import DistSubGraphLoader
from gigl_loader.options import ExpansionOptions
from gigl_loader.testing import TinyGraph

ENTRY = re.compile(r"^ {4}(\w+)(?: \(.+?\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
LOADERS = (DistNeighborLoader, DistABLPLoader, DistLinkNeighborLoader, DistSubGraphLoader)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_signature_shows_each_keyword_with_its_type_and_default(loader: type) -> None:
    shown = inspect.signature(loader).parameters
    assert not [name for name, one in shown.items() if one.kind is one.VAR_KEYWORD]
    for name, declared in KEYWORDS.items():
        assert shown[name].annotation == declared.annotation, name
        if (loader, name) != (DistSubGraphLoader, "subgraph_type"):
            assert shown[name].default == declared.default, name
    assert inspect.signature(DistSubGraphLoader).parameters["subgraph_type"].default == "induced"


def _explained(loader: type) -> dict[str, str]:
    """Return what a loader's docstring says of each parameter, by name, in its order."""
    doc = inspect.getdoc(loader)
    assert doc is not None
    found: dict[str, str] = {}
    for title in GROUPS:
        section = doc.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        for name, text in ENTRY.findall(section):
            assert name not in found, "explained twice"
            found[name] = " ".join(text.split())
    return found


@pytest.mark.parametrize("loader", LOADERS)
def test_a_docstring_says_what_each_parameter_means(loader: type) -> None:
    told = _explained(loader)
    assert told.keys() == inspect.signature(loader).parameters.keys()
    assert list(told) == [name for names in GROUPS.values() for name in names if name in told]
    assert all(told.values())
    assert inspect.getdoc(loader).count("\nArgs:\n") == 0  # type: ignore[union-attr]


def test_each_parameter_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(set(grouped)) == len(grouped)
    assert set(grouped) == {
        name for loader in LOADERS for name in inspect.signature(loader).parameters
    }


def test_gigls_own_keywords_come_last_and_ours_fit_on_a_page() -> None:
    """The 19 arguments of GiGL's loader are no choice of ours."""
    gigls = {*list(inspect.signature(DistNeighborLoader).parameters)[:19]}
    assert {*list(GROUPS.values())[-1]} <= gigls
    for loader in LOADERS:  # `device` is GiGL's `pin_memory_device` by torch's name
        assert len(inspect.signature(loader).parameters.keys() - gigls - {"device"}) <= 30


@pytest.mark.parametrize("loader", LOADERS)
def test_help_of_the_constructor_leads_to_the_class(loader: type) -> None:
    doc = inspect.getdoc(loader.__init__)  # type: ignore[misc]
    assert f"help({loader.__name__})" in str(doc)


@pytest.mark.parametrize("loader", LOADERS)
def test_deprecated_parameters_come_last(loader: type) -> None:
    deprecated = [text.startswith("Deprecated") for text in _explained(loader).values()]
    assert any(deprecated)
    assert deprecated == sorted(deprecated)


def test_types_are_told_without_modules() -> None:
    doc = inspect.getdoc(DistNeighborLoader)
    assert "\n    seed (int | None): Decides shuffle and draws." in str(doc)
    assert "\n    transform (Callable[[Any], Any] | None): " in str(doc)
    assert "gigl_loader._glt" not in str(doc)


def test_own_words_go_before_those_of_all_loaders() -> None:
    def meaning(loader: type, name: str) -> str:
        return _explained(loader)[name]

    assert meaning(DistNeighborLoader, "batch_size") == "Seeds per batch."
    assert meaning(DistABLPLoader, "batch_size") == "Anchors per batch."
    assert meaning(DistABLPLoader, "drop_last") == meaning(DistNeighborLoader, "drop_last")
    assert meaning(DistABLPLoader, "replace") == "Draw neighbours with replacement."


def test_type_checkers_see_what_the_options_declare() -> None:
    by_keyword = get_type_hints(LoaderKeywords)
    declared = get_type_hints(LoaderOptions) | get_type_hints(ExpansionOptions)
    assert get_type_hints(AllKeywords) == {name: declared[name] for name in KEYWORDS}
    assert by_keyword.keys() < KEYWORDS.keys()
    assert declared.keys() - KEYWORDS.keys() == {"num_neighbors", "expansion"}


def test_positional_arguments_are_the_same_in_all_loaders() -> None:
    shared = KEYWORDS.keys() - get_type_hints(LoaderKeywords).keys()
    assert len(shared) == 16
    for loader in LOADERS[:3]:
        named = inspect.signature(loader).parameters
        for name in shared:
            assert named[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            declared = KEYWORDS[name]
            assert (named[name].annotation, named[name].default) == (
                declared.annotation, declared.default,
            )  # fmt: skip


def test_defaults_are_of_their_types() -> None:
    for name, declared in KEYWORDS.items():
        kind = declared.annotation
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        chosen = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
        assert type(declared.default) in kinds or declared.default in chosen, name


def test_an_unknown_keyword_is_refused_with_the_most_similar_one() -> None:
    dataset = TinyGraph.random(8, 10).dataset()
    shufle: dict[str, Any] = {"shufle": True}
    input_tme: dict[str, Any] = {"input_tme": None}
    qq: dict[str, Any] = {"qq": 1}
    match = r"DistNeighborLoader.*unexpected keyword argument 'shufle'; did you mean 'shuffle'\?"
    with pytest.raises(WrongTypeError, match=match):
        DistNeighborLoader(dataset, [2], torch.arange(3), **shufle)
    with pytest.raises(WrongTypeError, match=r"'input_tme'; did you mean 'input_time'\?"):
        DistSubGraphLoader(dataset, torch.arange(3), [2], **input_tme)
    with pytest.raises(TypeError, match=r"'shufle'; did you mean 'shuffle'\?. And 'qq'$"):
        DistNeighborLoader(dataset, [2], torch.arange(3), **shufle, **qq)
    with pytest.raises(WrongTypeError, match=r"unexpected keyword argument 'qq'$"):
        DistNeighborLoader(dataset, [2], torch.arange(3), **qq)


@pytest.mark.parametrize("loader", LOADERS)
def test_what_changes_nothing_is_taken_with_one_warning(loader: type) -> None:
    """Up to the dataset, which is none."""
    habits = {
        "persistent_workers": True, "pin_memory": True, "prefetch_factor": 2, "is_sorted": True,
        "generator": None, "sampler": None, "directed": True, "collect_features": True,
    }  # fmt: skip
    with (
        pytest.warns(UserWarning, match="does without") as told,
        pytest.raises(ConfigError, match="DistDataset"),
    ):
        loader(None, num_neighbors=[2], **habits)
    (one,) = told
    text = str(one.message)
    assert one.filename == __file__
    for name in ("persistent_workers", "pin_memory", "prefetch_factor", "is_sorted"):
        assert f"{name}: " in text


@pytest.mark.parametrize("loader", LOADERS)
def test_a_deprecated_keyword_is_taken_and_changes_nothing(loader: type) -> None:
    with (
        pytest.warns(DeprecationWarning, match="lookahead: the size of remote_cache") as told,
        pytest.raises(ConfigError, match="DistDataset"),
    ):
        loader(None, num_neighbors=[2], lookahead=3)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("loader", LOADERS)
def test_the_former_word_for_a_way_to_draw_leads_to_the_new_one(loader: type) -> None:
    with pytest.raises(WrongTypeError, match=r"'sampler'; .*sampling_method= chooses how"):
        loader(None, num_neighbors=[2], sampler="labor")


@pytest.mark.parametrize("loader", LOADERS)
def test_all_that_is_anothers_is_answered_in_one_error(loader: type) -> None:
    order = torch.utils.data.RandomSampler(range(3))
    with pytest.raises(WrongTypeError) as caught:
        loader(
            data=None, num_neighbors=[2], generator=torch.Generator(), sampler=order, nm_workers=1,
            persistent_workers=True, to_device="cpu", directed=False,
        )  # fmt: skip
    text = str(caught.value)
    assert text.startswith(f"{loader.__name__}.__init__() got unexpected keyword arguments")
    for words in (
        "seed=",
        "pass the seeds in the order",
        " device=",
        "induced",
        "'num_workers'?",
    ):
        assert words in text
    assert "persistent_workers" not in text
    with pytest.raises(WrongTypeError, match=r"'data'; give the dataset first.*from_pyg\(data\)"):
        loader(data=TinyGraph.random(8, 10), num_neighbors=[2])


def test_every_argument_of_the_loaders_that_people_come_from_is_known() -> None:
    """Those of PyG and torch; a test of the migration page holds its tables to the same."""
    ours = {name for loader in LOADERS for name in inspect.signature(loader).parameters}
    for theirs in (pyg.NeighborLoader, pyg.LinkNeighborLoader, torch.utils.data.DataLoader):
        names = {*inspect.signature(theirs.__init__).parameters} - {"self", "kwargs"}
        assert names <= ours | CHANGE_NOTHING.keys() | ANSWERS.keys()
    assert not ours & (CHANGE_NOTHING.keys() | ANSWERS.keys() | DEPRECATED.keys())
