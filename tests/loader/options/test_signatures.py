"""The keywords that loaders share are declared once, and shown by all of them."""

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
import torch_geometric.loader as pyg

from gigl_loader import ConfigError, DistABLPLoader, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.node_loader import DistSubGraphLoader
from gigl_loader.loader.options.loader_options import AllKeywords, LoaderKeywords, LoaderOptions
from gigl_loader.loader.options.signatures import ANSWERS, CHANGE_NOTHING, DEPRECATED, KEYWORDS
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sources.remote_interface import RemoteDataset
from gigl_loader.testing import TinyGraph

ENTRY = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
GROUPS = {
    "Data": (
        "dataset",
        "num_neighbors",
        "input_nodes",
        "edge_label_index",
        "edge_label",
        "supervision_edge_type",
        "use_label_edge_index_output",
        "exclude_supervision",
        "neg_sampling",
        "neg_sampling_ratio",
        "strict",
        "batch_size",
        "shuffle",
        "seed_groups",
        "groups_per_batch",
        "drop_last",
        "seed",
        "with_edge",
        "feature_store",
        "transform",
        "transform_sampler_output",
        "pad",
    ),
    "Draws": (
        "replace",
        "weight_attr",
        "with_weight",
        "sampling_method",
        "sampler_options",
        "subgraph_type",
        "disjoint",
        "time_attr",
        "input_time",
        "edge_label_time",
        "temporal_strategy",
        "time_window",
        "input_start_time",
        "input_end_time",
        "with_hop",
        "tokens",
        "adaptive_fanout",
    ),
    "Ranks": ("shard", "even_ranks"),
    "Processes": ("num_workers", "worker_concurrency", "exchange", "in_order", "worker_init_fn"),
    "Buffers": ("channel_size", "remote_cache"),
    "Device": ("device", "pin_memory_device", "device_prefetch"),
    "Faults": ("timeout", "max_restarts", "reconnect_timeout"),
    "Accepted from GiGL": (
        "prefetch_size",
        "process_start_gap_seconds",
        "num_cpu_threads",
        "non_blocking_transfers",
        "context",
        "local_process_rank",
        "local_process_world_size",
    ),
}
"""The sections of a loader's docstring, in their order, and the parameters that each explains."""
LONGEST_TYPE = 60
"""A longer one says less than the text does."""
LOADERS = (DistNeighborLoader, DistABLPLoader, DistLinkNeighborLoader, DistSubGraphLoader)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_signature_shows_each_keyword_with_its_type_and_default(loader: Any) -> None:
    shown = inspect.signature(loader).parameters
    assert not [name for name, one in shown.items() if one.kind is one.VAR_KEYWORD]
    for name, declared in KEYWORDS.items():
        assert shown[name].annotation == declared.annotation, name
        if (loader, name) != (DistSubGraphLoader, "subgraph_type"):
            assert shown[name].default == declared.default, name
    assert inspect.signature(DistSubGraphLoader).parameters["subgraph_type"].default == "induced"


def _entries(loader: Any) -> dict[str, tuple[str, str]]:
    """Return the type and the text of each parameter in a loader's docstring, in its order."""
    doc = inspect.getdoc(loader)
    assert doc is not None
    found: dict[str, tuple[str, str]] = {}
    for title in GROUPS:
        section = doc.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        for name, kind, text in ENTRY.findall(section):
            assert name not in found, "explained twice"
            found[name] = (kind, " ".join(text.split()))
    return found


def _explained(loader: Any) -> dict[str, str]:
    """Return what a loader's docstring says of each parameter, by name, in its order."""
    return {name: text for name, (_, text) in _entries(loader).items()}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_docstring_says_what_each_parameter_means(loader: Any) -> None:
    told = _explained(loader)
    assert told.keys() == inspect.signature(loader).parameters.keys()
    assert list(told) == [name for names in GROUPS.values() for name in names if name in told]
    assert all(told.values())
    assert (inspect.getdoc(loader) or "").count("\nArgs:\n") == 0


def test_each_parameter_is_in_one_group() -> None:
    site = (Path(__file__).parents[3] / "docs/conf.py").read_text()
    assert [title for title in GROUPS if f'("{title}", "params_style")' not in site] == []
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
        assert len(inspect.signature(loader).parameters.keys() - gigls - {"device"}) <= 37


@pytest.mark.parametrize("loader", LOADERS)
def test_help_of_the_constructor_leads_to_the_class(loader: Any) -> None:
    doc = inspect.getdoc(loader.__init__)
    assert f"help({loader.__name__})" in str(doc)


@pytest.mark.parametrize("loader", LOADERS)
def test_deprecated_parameters_come_last(loader: Any) -> None:
    deprecated = [text.startswith("Deprecated") for text in _explained(loader).values()]
    assert any(deprecated)
    assert deprecated == sorted(deprecated)


def test_types_are_told_without_modules() -> None:
    doc = inspect.getdoc(DistNeighborLoader)
    assert "\n    seed (int | None): Decides shuffle and draws." in str(doc)
    assert "\n    transform (Callable[[Any], Any] | None): " in str(doc)
    assert "gigl_loader.runtime.glt_classes" not in str(doc)


def _in_words(kind: Any) -> str:
    """Return a type as a docstring has it, without modules, on any version of Python."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join("None" if one is type(None) else _in_words(one) for one in get_args(kind))
    return re.sub(r"\b(?:\w+\.)+", "", inspect.formatannotation(kind))


@pytest.mark.parametrize("loader", LOADERS)
def test_docstrings_have_the_types_of_the_signature(loader: Any) -> None:
    entries = _entries(loader)
    for name, parameter in inspect.signature(loader).parameters.items():
        kind = _in_words(parameter.annotation)
        assert entries[name][0] == (kind if len(kind) <= LONGEST_TYPE else ""), name


@pytest.mark.parametrize("loader", LOADERS[1:])
def test_all_loaders_say_the_same_of_a_keyword(loader: Any) -> None:
    """A loader may go on from there with what is its own."""
    first, told = _explained(DistNeighborLoader), _explained(loader)
    for name in get_type_hints(LoaderKeywords):
        assert told[name].startswith(first[name]), name


def test_docstrings_say_what_the_options_of_the_expansion_say() -> None:
    (declared,) = ast.parse(inspect.getsource(ExpansionOptions)).body
    assert isinstance(declared, ast.ClassDef)
    below = {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert below.keys() == get_type_hints(ExpansionOptions).keys()
    told = _explained(DistNeighborLoader)
    assert {name: told[name] for name in below} == below


def test_own_words_go_before_those_of_all_loaders() -> None:
    def meaning(loader: Any, name: str) -> str:
        return _explained(loader)[name]

    assert meaning(DistNeighborLoader, "batch_size") == "Seeds per batch."
    assert meaning(DistABLPLoader, "batch_size") == "Anchors per batch."
    assert meaning(DistABLPLoader, "drop_last") == meaning(DistNeighborLoader, "drop_last")
    assert meaning(DistABLPLoader, "replace") == "Draw neighbours with replacement."


def test_type_checkers_see_what_the_options_declare() -> None:
    by_keyword = get_type_hints(LoaderKeywords)
    declared = get_type_hints(ExpansionOptions) | get_type_hints(LoaderOptions)
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
                declared.annotation,
                declared.default,
            )


@pytest.mark.parametrize("loader", LOADERS)
def test_the_types_of_a_constructor_can_be_asked_for(loader: Any) -> None:
    assert RemoteDataset in get_args(get_type_hints(loader.__init__)["dataset"])


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
def test_what_changes_nothing_is_taken_with_one_warning(loader: Any) -> None:
    """Up to the dataset, which is none."""
    habits = {
        "persistent_workers": True,
        "pin_memory": True,
        "prefetch_factor": 2,
        "is_sorted": True,
        "generator": None,
        "sampler": None,
        "directed": True,
        "collect_features": True,
    }
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
def test_a_deprecated_keyword_is_taken_and_changes_nothing(loader: Any) -> None:
    with (
        pytest.warns(DeprecationWarning, match="lookahead: the size of remote_cache") as told,
        pytest.raises(ConfigError, match="DistDataset"),
    ):
        loader(None, num_neighbors=[2], lookahead=3)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("loader", LOADERS)
def test_the_former_word_for_a_way_to_draw_leads_to_the_new_one(loader: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"'sampler'; .*sampling_method= chooses how"):
        loader(None, num_neighbors=[2], sampler="labor")


@pytest.mark.parametrize("loader", LOADERS)
def test_all_that_is_anothers_is_answered_in_one_error(loader: Any) -> None:
    order = torch.utils.data.RandomSampler(range(3))
    with pytest.raises(WrongTypeError) as caught:
        loader(
            data=None,
            num_neighbors=[2],
            generator=torch.Generator(),
            sampler=order,
            nm_workers=1,
            persistent_workers=True,
            to_device="cpu",
            directed=False,
        )
    text = str(caught.value)
    assert text.startswith(f"{loader.__name__}.__init__() got unexpected keyword arguments")
    for words in ("seed=", "pass the seeds in the order", " device=", "induced", "'num_workers'?"):
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
