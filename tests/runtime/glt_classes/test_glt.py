import ast
import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.typing
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError, NativeLibraryError, UsageError
from gigl_loader.runtime import glt_classes

PACKAGE = Path(glt_classes.__file__).parents[2]


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.glt
@pytest.mark.parametrize("name", sorted(glt_classes.EXPORTS))
def test_glt_has(name: str) -> None:
    assert getattr(glt_classes, name) is not None


@pytest.mark.glt
def test_a_name_that_glt_lacks_is_reported_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(glt_classes.EXPORTS, "GraphView", "data.graph")
    with pytest.raises(
        UsageError, match=r"graphlearn-torch 0\.\S+ has no \S+GraphView.*pip install"
    ):
        glt_classes.GraphView  # noqa: B018
    monkeypatch.setitem(glt_classes.EXPORTS, "GraphView", "data.no_such_module")
    with pytest.raises(UsageError, match="pip install"):
        glt_classes.GraphView  # noqa: B018


def test_the_table_lists_all_that_the_package_takes() -> None:
    taken = {
        alias.name
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "gigl_loader.runtime.glt_classes"
        for alias in node.names
    }
    assert taken - {"available", "native_available"} <= set(glt_classes.EXPORTS)


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="is it in EXPORTS"):
        glt_classes.DistSubGraphLoader  # noqa: B018


@pytest.mark.glt
def test_a_glt_that_does_not_import_is_named_in_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphlearn_torch").mkdir()
    broken = tmp_path / "graphlearn_torch" / "__init__.py"
    broken.write_text("raise ImportError('an undefined symbol')")
    for name in [one for one in sys.modules if one.partition(".")[0] == "graphlearn_torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"undefined symbol.*uses its own classes"):
        assert not glt_classes._try_glt()


# --- what the import leaves behind ----------------------------------------------------------------


@pytest.mark.glt
def test_what_glt_does_to_torch_is_no_warning_of_the_user() -> None:
    """With torch 2.14 its decorator was the first line on the screen."""
    script = (
        "import warnings, torch, torch_geometric.data\n"
        "script = torch.jit.script\n"
        "def warns(*args, **more):\n"
        "    warnings.warn('`torch.jit.script` is deprecated', FutureWarning, stacklevel=2)\n"
        "    return script(*args, **more)\n"
        "torch.jit.script = warns\n"
        "import gigl_loader.runtime.glt_classes as classes\n"
        "assert classes.available\n"
        "torch.jit.script(torch.nn.Identity())\n"
    )
    command = [sys.executable, "-W", "always", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    told = [line for line in done.stderr.splitlines() if "FutureWarning: `torch.jit" in line]
    assert [line.partition(":")[0] for line in told] == ["<string>"], "the user's own alone"


def test_the_process_is_as_before() -> None:
    assert isinstance(torch.device("cpu"), torch.device)
    assert torch.device is glt_classes._torch_device
    assert os.environ.get("TORCH_CPP_LOG_LEVEL") != "ERROR"
    installed = importlib.util.find_spec("torch_sparse") is not None
    assert installed or "torch_sparse" not in sys.modules
    assert installed or not torch_geometric.typing.WITH_TORCH_SPARSE


def test_restoring_puts_back_what_was_there() -> None:
    mapping = {"a": 1}
    with glt_classes._restoring(mapping, "a"), glt_classes._restoring(mapping, "b"):
        mapping.update(a=2, b=3)
    assert mapping == {"a": 1}


def test_device_zero_needs_no_gpu() -> None:
    device: Any = glt_classes._Device
    assert device(0) == torch.device("cuda", 0)
    assert device("cpu") == torch.device("cpu")
    assert isinstance(torch.device("cpu"), device)


@pytest.mark.glt
def test_glt_reads_device_zero_as_a_gpu() -> None:
    from graphlearn_torch.loader import NodeLoader

    assert torch.device("cuda", 0) in NodeLoader.__init__.__defaults__


# --- COO to CSR -----------------------------------------------------------------------------------


@given(
    edges=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=30),
    num_cols=st.sampled_from([7, 2**62]),  # 5 * 2**62 does not fit into one sort key
)
def test_csr_is_a_stable_sort_by_row_and_column(
    edges: list[tuple[int, int]], num_cols: int
) -> None:
    row, col = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).unbind(1)
    value = torch.arange(len(edges))
    storage = glt_classes._SparseTensor(
        row=row, col=col, value=value, sparse_sizes=(5, num_cols)
    ).storage
    expected = sorted((r, c, i) for i, (r, c) in enumerate(edges))
    assert storage.col().tolist() == [c for _, c, _ in expected]
    values = storage.value()
    assert values is not None
    assert values.tolist() == [i for _, _, i in expected]
    assert storage.rowptr().tolist() == [sum(r < n for r, _, _ in expected) for n in range(6)]


def test_csr_without_values() -> None:
    row = torch.tensor([1, 0])
    assert (
        glt_classes._SparseTensor(row=row, col=row, value=None, sparse_sizes=(2, 2)).storage.value()
        is None
    )


@pytest.mark.parametrize(("row", "col", "what"), [(-1, 0, "row"), (2, 0, "row"), (0, 3, "column")])
def test_csr_names_an_index_out_of_range(row: int, col: int, what: str) -> None:
    with pytest.raises(ConfigError, match=f"edge {what} indices must be in"):
        glt_classes._SparseTensor(
            row=torch.tensor([row]), col=torch.tensor([col]), value=None, sparse_sizes=(2, 3)
        )


# --- the native library ---------------------------------------------------------------------------


@pytest.fixture
def stand_in() -> glt_classes._NativeStandIn:
    return glt_classes._NativeStandIn("undefined symbol: x")


def test_missing_symbols_say_why_when_used(stand_in: glt_classes._NativeStandIn) -> None:
    expected = r"CPURandomSampler.* was used, .*undefined symbol: x.* gigl_loader's own loaders"
    with pytest.raises(NativeLibraryError, match=expected):
        stand_in.CPURandomSampler(1)
    with pytest.raises(NativeLibraryError, match=expected):
        stand_in.CPURandomSampler.create()
    with pytest.raises(NativeLibraryError, match="init_cuda_from_csr"):
        stand_in.Graph().init_cuda_from_csr(1, 2)


def test_missing_symbols_can_be_named_and_inherited_from(
    stand_in: glt_classes._NativeStandIn,
) -> None:
    parent: Any = stand_in.CPURandomSampler

    class Sampler(parent):
        pass

    assert stand_in.CPURandomSampler is stand_in.CPURandomSampler
    assert copy.copy(Sampler) is Sampler
    assert (Sampler | None) is not None
    with pytest.raises(NativeLibraryError, match="Sampler"):
        Sampler()
    with pytest.raises(AttributeError):
        stand_in.__wrapped__  # noqa: B018


def test_the_stand_in_for_the_graph_counts(stand_in: glt_classes._NativeStandIn) -> None:
    graph = stand_in.Graph()
    graph.init_cpu_from_csr(torch.tensor([0, 2, 2]), torch.tensor([0, 5]), None, None)
    assert (graph.get_row_count(), graph.get_col_count(), graph.get_edge_count()) == (2, 2, 2)


@pytest.mark.glt
def test_native_available_is_true_to_the_process() -> None:
    from graphlearn_torch import py_graphlearn_torch as native

    assert native is sys.modules["graphlearn_torch.py_graphlearn_torch"]
    assert isinstance(native, glt_classes._NativeStandIn) is not glt_classes.native_available


@pytest.mark.native
def test_the_native_graph_counts_as_the_stand_in(stand_in: glt_classes._NativeStandIn) -> None:
    from graphlearn_torch import py_graphlearn_torch as native

    indptr, indices = torch.tensor([0, 2, 2]), torch.tensor([0, 5])
    counts = []
    for graph in (native.Graph(), stand_in.Graph()):
        graph.init_cpu_from_csr(indptr, indices, torch.tensor([0, 1]), torch.empty(0))
        counts.append((graph.get_row_count(), graph.get_col_count(), graph.get_edge_count()))
    assert counts[0] == counts[1]
