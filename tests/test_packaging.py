"""What describes the package to others says the same: image, recipe, workflows, constraints."""

import importlib.util
import json
import os
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CONDA = {
    "torch": "pytorch",
    "torch_geometric": "pytorch_geometric",
    "duckdb": "python-duckdb",
    "prometheus-client": "prometheus_client",
    "ray[train]": "ray-train",
}
"""Names on conda-forge that are not those of pip."""
NOT_ON_CONDA = {"graphlearn-torch"}
OF_CONDA_ALONE = {"__linux", "python", "openssl"}
FOR_USERS = (
    "metis",
    "tables",
    "delta",
    "iceberg",
    "objects",
    "nearest",
    "metrics",
    "gpu",
    "completion",
    "ray",
    "relational",
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
_REQUIREMENT = re.compile(r"([\w.\[\]-]+)\s*([<>=!~][^;#]*)?")


def _split(requirement: str) -> tuple[str, str]:
    """Return the name and the versions of a requirement."""
    found = _REQUIREMENT.match(requirement)
    assert found is not None, requirement
    return found[1], (found[2] or "").strip()


def _as_conda(requirements: list[str]) -> dict[str, str]:
    some = dict(_split(one) for one in requirements)
    return {
        CONDA.get(name, name): bound for name, bound in some.items() if name not in NOT_ON_CONDA
    }


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    wanted = dict(_split(one) for one in RECIPE["requirements"]["run"])
    assert {name: wanted[name] for name in wanted if name not in OF_CONDA_ALONE} == _as_conda(
        PROJECT["dependencies"]
    )
    assert wanted["python"] == PROJECT["requires-python"]


def test_the_recipe_bounds_the_extras() -> None:
    extras = [one for name in FOR_USERS for one in EXTRAS[name]]
    bounds = dict(_split(one) for one in RECIPE["requirements"]["run_constraints"])
    assert bounds == _as_conda(extras)


def test_the_recipe_says_what_the_package_says() -> None:
    assert RECIPE["context"]["version"] == PROJECT["version"]
    assert RECIPE["package"]["name"] == PROJECT["name"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    assert RECIPE["about"]["license"] == PROJECT["license"]
    points = [f"{name} = {where}" for name, where in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == points
    for module in RECIPE["tests"][0]["python"]["imports"]:
        assert importlib.util.find_spec(module), module


# --- the image ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """Return the steps of the Dockerfile, as what does them without an engine reads them."""
    spec = importlib.util.spec_from_file_location("image", ROOT / ".ci" / "image.py")
    assert spec is not None
    assert spec.loader is not None
    image = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(image)
    found: list[tuple[str, str]] = image.steps((ROOT / "Dockerfile").read_text())
    return found


def test_the_image_has_the_versions_that_are_tested(steps: list[tuple[str, str]]) -> None:
    arguments = [argument for instruction, argument in steps if instruction == "ARG"]
    constraints = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    (torch,) = (line for line in constraints if line.startswith("torch=="))
    assert arguments == [f"TORCH={torch}", "TORCH_INDEX="]
    assert steps[0] == ("FROM", "python:3.11-slim")


def test_the_steps_of_the_image_name_what_is_there(steps: list[tuple[str, str]]) -> None:
    known = {"FROM", "ARG", "ENV", "WORKDIR", "RUN", "COPY", "CMD", "ENTRYPOINT"}
    assert {instruction for instruction, _ in steps} == known
    text = "\n".join(argument for _, argument in steps)
    assert set(re.findall(r"'\.\[(\w+)\]'", text)) <= set(EXTRAS)
    for path in re.findall(r"(?:examples|\.ci)/[\w/.]+", text):
        assert (ROOT / path).is_file(), path


def test_nobody_else_writes_to_the_kernels_of_the_image(steps: list[tuple[str, str]]) -> None:
    """Numba unpickles them; another user reads a copy of its own."""
    made = next(argument for _, argument in steps if "chmod" in argument).partition("&& ")[2]
    start = json.loads(next(argument for name, argument in steps if name == "ENTRYPOINT"))
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder, "numba")
        (kernels / "sampler").mkdir(parents=True)
        kernel = kernels / "sampler" / "draw.nbi"
        kernel.write_text("kernel")
        for path in (kernels, *kernels.rglob("*")):
            path.chmod(0o777)
        Path(folder).chmod(0o755)

        def run(command: list[str], **options: Any) -> str:
            here = [part.replace("/opt/numba", str(kernels)) for part in command]
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels), "TMPDIR": folder}
            shown = subprocess.run(
                here, env=environment, check=True, capture_output=True, text=True, **options
            )
            return shown.stdout.strip()

        run(["sh", "-ec", made])
        modes = {path.stat().st_mode & 0o777 for path in kernels.rglob("*")}
        assert modes == {0o755}
        tell = [*start, "sh", "-c", "echo $NUMBA_CACHE_DIR"]
        assert run(tell) == str(kernels)
        # any user makes files in the folder for temporary ones
        Path(folder).chmod(0o1777)
        if os.getuid():
            kernels.chmod(0o555)
        other = {} if os.getuid() else {"user": 65534, "group": 65534}
        own = Path(run(tell, **other))
        assert own != kernels
        assert own.stat().st_mode & 0o077 == 0
        assert run([*start, "cat", f"{own}/sampler/draw.nbi"], **other) == "kernel"


@pytest.mark.parametrize("page", ["Dockerfile", "docs/guide/troubleshooting.md"])
def test_no_page_lets_all_users_write_to_kernels(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "chmod -R a+rX,go-w /opt/numba" in text
    assert re.findall(r"chmod [^&]*[ao]\+\w*w", text) == []


# --- workflows ------------------------------------------------------------------------------------


def _runs(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_is_there(workflow: Path) -> None:
    text = "\n".join(_runs(workflow))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", text)) <= targets
    for names in re.findall(r"'\.\[([\w,]+)\]'", text):
        assert set(names.split(",")) <= set(EXTRAS)
    for path in re.findall(r"\.ci/\w+", text):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_end_and_wait_for_jobs_that_are_there(workflow: Path) -> None:
    text = yaml.safe_load(workflow.read_text())
    assert text["permissions"] == {"contents": "read"}, "a job that needs more asks for it"
    for name, job in text["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
        assert {job["needs"]} <= set(text["jobs"]) if "needs" in job else True, name


def test_a_release_tries_each_python_that_the_package_names() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    tried = release["jobs"]["try"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tried == named


@pytest.mark.parametrize(
    "name", ["constraints.txt", "constraints-native.txt", "constraints-oldest.txt"]
)
def test_constraints_are_versions_of_what_the_package_asks_for(name: str) -> None:
    asked = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    names = {_split(one)[0].partition("[")[0] for one in asked} | {"pandas", "setuptools"}
    lines = [line for line in (ROOT / ".ci" / name).read_text().splitlines() if line[:1] != "#"]
    for line in lines:
        package, _, version = line.partition("==")
        assert version, line
        assert package in names, f"{package} is no dependency any more"


def test_the_oldest_versions_that_are_tried_are_those_that_are_claimed() -> None:
    lines = (ROOT / ".ci" / "constraints-oldest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if line[:1] != "#")
    for one in [*PROJECT["dependencies"], *EXTRAS["metis"]]:
        name, bound = _split(one.partition(";")[0])
        version = [*re.findall(r"\d+", bound), "0", "0"][:3]
        assert tried[name] == ".".join(version), one
