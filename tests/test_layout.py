"""Tests lie where the package says: `tests/<folder>/test_<module>.py`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "gigl_loader", ROOT / "tests"
FOLDERS = {"ray": "on_ray"}
"""A folder of tests that is called `ray` could be taken for Ray itself."""
WITHOUT = {
    "distributed_neighborloader": "a name of GiGL's, which test_utils imports",
    "testing/_fakes": "stands in for another side: the tests that use it would fail",
    "testing/_footprint": "counts what processes hold: the tests that count with it would fail",
    "testing/_forked": "starts the processes of every test that has some",
    "testing/_warm": "imports, nothing else",
    "testing/_workers": "finds the processes that other tests kill",
    "testing/simulation/_cluster": "test_simulation runs whole jobs of it",
    "testing/simulation/_colocated": "test_simulation runs whole jobs of it",
    "testing/simulation/_size": "test_simulation runs whole jobs of it",
    "testing/simulation/_workers": "test_simulation runs whole jobs of it",
}


def test_each_module_has_a_test_of_its_name() -> None:
    without = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        folders = [FOLDERS.get(name, name) for name in module.parts[:-1]]
        test = TESTS.joinpath(*folders, f"test_{path.stem.lstrip('_')}.py")
        if not path.stem.startswith("__") and not test.exists():
            without.add(module.with_suffix("").as_posix())
    assert without == set(WITHOUT)
