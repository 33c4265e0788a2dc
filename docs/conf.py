import ast
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.nodes import make_refnode

project = "gigl_loader"
author = "The gigl_loader authors"
copyright = "the gigl_loader authors, Apache-2.0"
version = release = installed_version("gigl_loader")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",  # a link to the documentation of names of other libraries
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # a link to the source beside each name
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"gigl_loader {release}"

default_role = "py:obj"  # `name` in a docstring is a link where there is something to link to
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    ("Source", "notes_style"),
    # the loaders' keywords
    ("Data", "params_style"),
    ("Draws", "params_style"),
    ("Ranks", "params_style"),
    ("Processes", "params_style"),
    ("Buffers", "params_style"),
    ("Device", "params_style"),
    ("Faults", "params_style"),
    ("Accepted from GiGL", "params_style"),
]
autosummary_generate = False  # the tables alone: each name is explained on the same page
copybutton_exclude = ".linenos, .gp, .go"  # of a console: the command, not prompt and output
html_static_path = ["_static"]
html_css_files = ["wrap.css"]  # code is wider than the theme expects
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The pages of names of other libraries that this site uses. The lists are written by hand, in the
# plain text that Sphinx reads as version 1, so that a build needs no network: CI has none.
# tests/docs/test_site.py imports each name. What is in no list, or of ours and on no page, fails.
nitpicky = True
_ELSEWHERE = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "pyg": "https://pytorch-geometric.readthedocs.io/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "arrow": "https://arrow.apache.org/docs/",
}
intersphinx_mapping = {
    name: (address, f"inventories/{name}.txt") for name, address in _ELSEWHERE.items()
}
intersphinx_disabled_reftypes = ["std:*"]  # names of Python objects alone
nitpick_ignore_regex = [
    # base classes, and types that GLT's own loaders take: it publishes no list of its names
    ("py:.*", r"graphlearn_torch\..*"),
    # names that annotations use for a str, a tuple of three of them, and a path
    ("py:class", "NodeType|EdgeType|FilePath"),
    # standard interfaces that the inventory has under another name
    ("py:class", r"collections\.abc\.Hashable|contextlib\.AbstractContextManager"),
    ("py:class", r"dataclasses\.InitVar"),
    # the inventories have others of these modules
    ("py:class", r"datetime\.date|pa\.Table"),
    # bounds of names that other processes send: msgspec publishes no list of its names
    ("py:class", r"msgspec\.Meta"),
    # type variables
    ("py:.*", r"gigl_loader\..*\.[A-Z]"),
    # Arguments and values of methods that loaders and servers call, not users: they are explained
    # in the modules that have them.
    (
        "py:class",
        r"gigl_loader\..*\.(ArrowBatches|Attempt|CacheOptions|Cluster|SourceOptions|EpochRequest|"
        r"FetchRequest|FixedOptions|HeldPart|HeldSeeds|JobTurns|LoaderInSteps|MessageMemory|Padding|PartitionAnswers|DatasetProperties|PartitionView|SamplesForLoader|"
        r"Placement|ProducerRequest|RangeBook|Received|RemoteSamplerInput|Rendezvous|Security|"
        r"StorageService|StoreLookup|TorchBackend|Database)",
    ),
]

_PUBLIC = (
    "gigl_loader",
    "gigl_loader.graph_store",
    "gigl_loader.graph_store.ray",
    "gigl_loader.testing",
)
_PACKAGES = (
    *_PUBLIC,
    "gigl_loader.dataset.identity",
    "gigl_loader.partitioning.tables.spec",
    "gigl_loader.runtime.transport",
)
_SHORT = {
    "Data": "torch_geometric.data.Data",
    "DataLoader": "torch.utils.data.DataLoader",
    "HeteroData": "torch_geometric.data.HeteroData",
    "NegativeSampling": "torch_geometric.sampler.NegativeSampling",
    "torch.distributed.distributed_c10d.ProcessGroup": "torch.distributed.ProcessGroup",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch_geometric.data.data.Data": "torch_geometric.data.Data",
    "torch_geometric.data.hetero_data.HeteroData": "torch_geometric.data.HeteroData",
    "torch_geometric.sampler.base.NegativeSampling": "torch_geometric.sampler.NegativeSampling",
    "torch_geometric.sampler.base.NumNeighbors": "torch_geometric.sampler.NumNeighbors",
}
"""Names in docstrings, and modules in annotations, to the names that their documentation has."""
_OF_CLASS = {
    "OfGraphStore": "RemoteDistDataset",
    "OfPartition": "DistDataset",
    "RemoteDataset": "RemoteDistDataset",
}
"""Interfaces in annotations, and the class that this site explains in their place."""


def _find_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Link a name of ours to where this site explains it, whatever module it is said to be in.

    Docstrings leave the package out, and annotations have the module that a class is written in.
    """
    if node.get("refdomain") != "py":
        return None
    known = env.domains.python_domain.objects
    parts = [_OF_CLASS.get(part, part) for part in node["reftarget"].split(".")]
    # of "module.Class.method" the last two may be looked up, of "Class.method" both, never "method"
    of_class = next((at for at, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    for first in range(of_class + 1):
        for package in _PACKAGES:
            name = ".".join([package, *parts[first:]])
            if (found := known.get(name)) is not None:
                where = (found.docname, found.node_id)
                return make_refnode(app.builder, node["refdoc"], *where, content, name)
    # intersphinx, which comes next, looks up what is written here
    node["reftarget"] = _SHORT.get(node["reftarget"], node["reftarget"])
    return None


def _keep_colon(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from reading "Position: of a seed" as an attribute of the type "Position"."""
    if what in ("attribute", "data", "property") and lines and ":" in lines[0]:
        lines[:0] = ["..", ""]  # a comment, which has no colon


def _is_private(base: type[Any]) -> bool:
    """Return whether users have no name for a base: the half of a class that has two files."""
    return base.__name__.startswith("_") or base.__name__ == "PartitionSignatures"


def _show_public_bases(
    app: Sphinx, name: str, obj: Any, options: Any, bases: list[type[Any]]
) -> None:
    """Show the bases of a private base in its place, and none that only answers other libraries."""
    bases[:] = [
        shown
        for base in bases
        if not base.__name__.startswith("Answers")
        for shown in (base.__bases__ if _is_private(base) else (base,))
    ]


def _read_fields() -> None:
    """Let autodoc find the docstrings of fields, and the order of members, of public classes.

    A public class says that its module is the package, so Sphinx would look for them in the
    package's ``__init__``. The package's stub names the modules that they are in.
    """
    for package in _PUBLIC:
        known = ModuleAnalyzer.for_module(package)
        known.analyze()
        stub = Path(known.srcname).with_suffix(".pyi")
        for statement in ast.parse(stub.read_text()).body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                found = ModuleAnalyzer.for_module(statement.module)
                found.analyze()
                known.attr_docs.update(found.attr_docs)
                known.annotations.update(found.annotations)
                known.tagorder.update(found.tagorder)


def setup(app: Sphinx) -> None:
    """Connect the hooks before Sphinx's own, whose priority is 500."""
    _read_fields()
    app.connect("missing-reference", _find_name, priority=400)
    app.connect("autodoc-process-docstring", _keep_colon, priority=400)
    app.connect("autodoc-process-bases", _show_public_bases)
