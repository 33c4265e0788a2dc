"""What a worker is told at its start; what users have it run is sent, or refused before."""

import dataclasses
import functools
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import SILENCE_S
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.plan import SeedInput
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.workers.pipe import Plugins, WorkerSetup, main_path_of, pickled

GUARDED = 'def start(number): ...\n\n\nif __name__ == "__main__":\n    print("the job")\n'


def test_functions_of_modules_and_keywords_arrive() -> None:
    init: Any = functools.partial(os.path.join, "x")
    plugins = Plugins(SamplerKind("a.b.Sampler", {"depth": 3}), init)
    found = pickle.loads(pickled(plugins))
    assert found.sampler == plugins.sampler
    assert found.init_fn("y") == os.path.join("x", "y")


class _Strange:
    def __reduce__(self) -> str:
        raise ArithmeticError("not now")


@pytest.mark.parametrize(
    "plugins",
    [
        Plugins(init_fn=lambda number: None),
        Plugins(SamplerKind("a.b.Sampler", {"file": sys.stderr})),
        Plugins(SamplerKind("a.b.Sampler", {"strange": _Strange()})),
    ],
)
def test_what_cannot_be_sent_is_named(plugins: Plugins) -> None:
    with pytest.raises(
        ConfigError, match=r"function of a module, or a functools\.partial"
    ) as found:
        pickled(plugins)
    assert repr(plugins.init_fn) in str(found.value)
    assert found.value.__cause__ is not None


@pytest.mark.parametrize(
    ("sampler", "own"),
    [
        (NEIGHBOR_KIND, True),
        (SamplerKind("gigl_loader.sampler.ppr.ppr_sampler.PPRSampler"), True),
        (SamplerKind("gigl_loader_extras.Sampler"), False),
        (SamplerKind("mine.gigl_loader.Sampler"), False),
    ],
)
def test_whose_class_a_sampler_is(sampler, own: bool) -> None:
    assert sampler.is_own == own


def _main(monkeypatch: pytest.MonkeyPatch, path: Path | None):
    """Return a function of a script at ``path``; None: of an interactive session."""
    main = ModuleType("__main__")
    if path is not None:
        main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)

    def start(number: int) -> None: ...

    start.__module__ = "__main__"
    return start


def test_a_function_of_the_users_script_is_found_by_its_path(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(GUARDED)
    assert main_path_of(_main(monkeypatch, path)) == str(path)
    assert main_path_of(None) is None
    assert main_path_of(os.getpid) is None, "any worker can import it"


def test_an_interactive_session_has_no_script(monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"interactive session.*put it into a module"):
        main_path_of(_main(monkeypatch, None))


def test_a_script_that_is_no_file_cannot_be_imported(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"<stdin>.*standard input"):
        main_path_of(_main(monkeypatch, tmp_path / "<stdin>"))


@pytest.mark.parametrize("text", ["train()\n", '# if __name__ == "__main__":\ntrain("__name__")\n'])
def test_a_script_that_would_start_the_job_again_is_refused(
    text: str, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(ConfigError, match=r"train\.py.*run all of it again.*below that line"):
        main_path_of(_main(monkeypatch, tmp_path / "train.py"))


def _setup(*, replaceable: bool, rpc_timeout_s: float) -> WorkerSetup:
    unread: dict[str, Any] = {field.name: None for field in dataclasses.fields(WorkerSetup)}
    how: dict[str, Any] = {"replaceable": replaceable, "rpc_timeout_s": rpc_timeout_s}
    return WorkerSetup(**{**unread, **how})


@pytest.mark.parametrize(
    ("replaceable", "rpc_timeout_s", "expected"),
    [
        (True, 10 * SILENCE_S, 10 * SILENCE_S),
        (True, SILENCE_S / 2, SILENCE_S),
        (False, 10 * SILENCE_S, SILENCE_S),
    ],
)
def test_one_that_may_be_replaced_is_waited_for_as_long_as_an_answer_may_take(
    replaceable: bool, rpc_timeout_s: float, expected: float
) -> None:
    assert _setup(replaceable=replaceable, rpc_timeout_s=rpc_timeout_s).patience_s == expected


@pytest.mark.parametrize("shape", [(0,), (7,), (7, 2)])
def test_the_length_of_an_input_is_that_of_its_seeds(shape: tuple[int, ...]) -> None:
    seeds: SeedInput[Any] = SeedInput(np.zeros(shape, np.int64), {"label": np.zeros(3)})
    found = len(seeds)
    assert (found, type(found)) == (shape[0], int)
