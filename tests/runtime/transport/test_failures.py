"""Errors that travel: ours come back as they were, others as `RemoteError`; ends do as values."""

from typing import Any

import pytest

from gigl_loader import errors
from gigl_loader.errors import GiglLoaderError, ProtocolError, RemoteError
from gigl_loader.runtime.transport.codec import decode, encode, read_header
from gigl_loader.runtime.transport.failures import EndReason, Failure, describe, fresh_copy, rebuild
from gigl_loader.runtime.transport.handshake import Goodbye

FIELDS: dict[str, tuple[Any, ...]] = {
    "WorkerDiedError": (3, 4711, -9, "out of memory", "storage server 1"),
    "SamplingError": ("worker 2", "ValueError: no", "Traceback ..."),
    "RemoteError": ("server", "KeyError: 'x'", "Traceback ..."),
    "PeerLostError": ("it is gone", EndReason.SILENT),
    "JoinRefusedError": ("other token", EndReason.REFUSED_TOKEN),
    "JobStoppedError": ("it was stopped", EndReason.REFUSED_TOKEN),
}
OURS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, GiglLoaderError)
    if not cls.__name__.startswith("_")  # bases, which nobody raises
]


def travelled(failure: Failure) -> Failure:
    _, body, _ = read_header(encode(failure)[0])
    return decode(body, [], Failure)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_our_errors_come_back_as_they_were(cls: type[GiglLoaderError]) -> None:
    error = cls(*FIELDS.get(cls.__name__, ("what, where, why",)))
    back = rebuild(travelled(describe(raised(error))), "server")
    assert type(back) is cls
    assert back.args == error.args
    assert str(back) == str(error)
    assert {**vars(back), "filename": None} == {**vars(error), "filename": None}


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("cause", [None, KeyError("paper")])
def test_a_fresh_copy_has_all_but_the_traceback(
    cls: type[GiglLoaderError], cause: Exception | None
) -> None:
    error = cls(*FIELDS.get(cls.__name__, ("what, where, why",)))
    error.__cause__ = cause
    copied = fresh_copy(error)
    assert copied is not error
    assert type(copied) is cls
    assert (copied.args, str(copied), vars(copied)) == (error.args, str(error), vars(error))
    assert copied.__cause__ is cause
    raised(copied)
    assert copied.__traceback__ is not None
    assert error.__traceback__ is None


def test_every_class_with_fields_is_tried_above() -> None:
    own = {
        cls.__name__
        for cls in OURS
        if any("__init__" in vars(one) for one in cls.__mro__ if issubclass(one, GiglLoaderError))
    }
    assert own - {"ResourceError"} == set(FIELDS)


def test_an_error_of_others_names_what_and_where() -> None:
    back = rebuild(travelled(describe(raised(KeyError("paper")))), "server 1")
    assert isinstance(back, RemoteError)
    assert (back.where, back.cause) == ("server 1", "KeyError: 'paper'")
    assert "in raised" in back.remote_traceback


def test_a_class_of_the_users_with_our_name_stays_its_words() -> None:
    class Odd(errors.ConfigError):
        """Not one of the table: nothing is built from what came but these."""

    back = rebuild(travelled(describe(Odd("own"))), "server")
    assert type(back) is RemoteError
    assert "Odd: own" in str(back)


def test_arguments_that_are_no_plain_values_become_words() -> None:
    back = rebuild(travelled(describe(errors.ConfigError(["a", "list"]))), "server")
    assert type(back) is errors.ConfigError
    assert back.args == ("['a', 'list']",)


def test_other_fields_than_ours_are_no_crash() -> None:
    back = rebuild(Failure("WorkerDiedError", (), "worker 3 died", "trace"), "server")
    assert type(back) is RemoteError
    assert "worker 3 died" in str(back)


def test_long_texts_fit_into_a_header() -> None:
    error = errors.SamplingError("worker", "é" * 300_000, "x" * 300_000)
    failure = travelled(describe(error))
    assert [len(str(arg)) for arg in failure.args] == [6, 100_000, 100_000]
    assert len(failure.text) == 10_000


def test_a_traceback_keeps_its_lines_and_loses_what_a_terminal_obeys() -> None:
    trace = "Traceback:\n\tin f\x1b[2J\r\n"
    back = rebuild(Failure("KeyError", (), "a\x1b]0;title\x07", trace), "server")
    assert isinstance(back, RemoteError)
    assert back.remote_traceback == "Traceback:\n\tin f\\x1b[2J\\r\n"
    assert back.cause == "KeyError: a\\x1b]0;title\\x07"
    ours = rebuild(Failure("ConfigError", ("two\nlines\x1b[1m",), "", ""), "server")
    assert ours.args == ("two\nlines\\x1b[1m",)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", EndReason)
def test_each_end_arrives_as_itself(end: EndReason) -> None:
    _, body, _ = read_header(encode(Goodbye(end, "words"))[0])
    assert decode(body, [], Goodbye) == Goodbye(end, "words")
    assert EndReason(str(end)) is end  # as errors carry it


def test_words_never_stand_for_an_end() -> None:
    _, body, _ = read_header(encode({"end": "it was shut down", "words": ""})[0])
    with pytest.raises(ProtocolError):
        decode(body, [], Goodbye)


def test_refusals_are_told_from_other_ends() -> None:
    refused = {end for end in EndReason if end.name.startswith("REFUSED_")}
    assert refused == {end for end in EndReason if end.value.startswith("refused: ")}
    assert len({end.value for end in EndReason}) == len(EndReason)
