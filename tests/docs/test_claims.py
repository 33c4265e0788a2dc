"""What pages say of us and of other projects holds, is dated, and is read once."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts),
]
DATED = r"20\d\d-\d\d-\d\d"


def _text(page: Path) -> str:
    """Return a page with its lines joined."""
    return " ".join(page.read_text().split())


def _section(page: str, title: str) -> str:
    text = (ROOT / page).read_text()
    return " ".join(text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0].split())


@pytest.mark.parametrize(
    "sentence",
    [
        "waits until its former self has left",
        "what one does not use goes to the others",
        "the rows that it was about to store",
        "compact them, or leave it at that",
        "continues any state with the saved",
        "are answered by name",
        "are none that the system gives meanwhile",
    ],
)
def test_no_sentence_has_to_be_read_twice(sentence: str) -> None:
    assert [page.name for page in PAGES if sentence in _text(page)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_stays_after_shutdown_is_said(page: str) -> None:
    text = _text(ROOT / page)
    for words in ("`gigl-at-rest`", "for a minute", "release_workers()"):
        assert words in text, words


def test_requirements_of_others_are_those_of_a_commit() -> None:
    compared = _section("docs/index.md", "How it compares")
    assert "graphlearn-torch and GiGL need a CUDA build" not in compared
    requirements = compared.split("**Requirements.**", 1)[1]
    assert 'WITH_CUDA="OFF"' in requirements
    assert "torch 2.8" in requirements
    assert "fee4ba50" in requirements


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_comparison_names_commits_and_dates(page: str) -> None:
    text = _text(ROOT / page).split("| gigl_loader | graphlearn-torch", 1)[1]
    for commit in ("fee4ba50", "4c4d6109"):  # GiGL's, graphlearn-torch's
        assert re.search(rf"`{commit}` \({DATED}\)", text), commit


@pytest.mark.parametrize(
    "page",
    ["guide/migrating.md", "guide/from_glt.md", "guide/from_gigl.md", "guide/beside_gigl.md"],
)
def test_a_guide_of_another_library_says_which_code_was_read(page: str) -> None:
    assert re.search(rf"[0-9a-f]{{7,8}}`? \({DATED}\)|read on {DATED}", _text(DOCS / page))


@pytest.mark.parametrize("figure", ["131 launches", "102 operators", "551 operators", "4.2 ms"])
def test_a_figure_that_no_gpu_has_run_says_so(figure: str) -> None:
    """In the same paragraph, table or item, or in the sentence before a table."""
    found = False
    for page in PAGES:
        text = page.read_text()
        for block in re.split(r"\n(?=- )|\n\n(?!\|)", text):
            if figure in block:
                found = True
                assert re.search(r"[Cc]omputed|[Cc]ounted on a CPU target", block), (page, block)
    assert found


@pytest.mark.parametrize(
    "name", ["logging", "cores", "stability", "changing_graphs", "beside_gigl"]
)
def test_a_page_is_in_the_index(name: str) -> None:
    assert f"\nguide/{name}\n" in (DOCS / "index.md").read_text()
    assert (DOCS / "guide" / f"{name}.md").read_text().startswith("# ")


def test_the_project_can_be_cited_and_has_a_code_of_conduct() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {project['version']}\n" in citation
    assert f"license: {project['license']}\n" in citation
    assert "CODE_OF_CONDUCT.md" in (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    assert (ROOT / ".github" / "CODE_OF_CONDUCT.md").read_text().startswith("# Code of conduct\n")


def test_documentation_of_a_version_lies_beside_another() -> None:
    assert "docs/_build/html/$(DOCS_VERSION)\n" in (ROOT / "Makefile").read_text()
    assert "make docs DOCS_VERSION=" in (DOCS / "changelog.md").read_text()


@pytest.mark.parametrize("page", ["tables", "graph_store", "migrating"])
def test_a_guide_ends_where_a_task_ends(page: str) -> None:
    assert len((DOCS / "guide" / f"{page}.md").read_text().split()) < 1900


@pytest.mark.parametrize("title", ["Rights of an admitted process", "Files of others"])
def test_what_others_cannot_do_names_tests_that_exist(title: str) -> None:
    page = (DOCS / "guide/security.md").read_text()
    told = page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    assert len(re.findall(r"^% test: ", told, re.MULTILINE)) > 10
    named = re.findall(r"^% test: (\S+)::(\w+)$", page, re.MULTILINE)
    missing = [one for file, one in named if f"def {one}(" not in (ROOT / file).read_text()]
    assert missing == []
