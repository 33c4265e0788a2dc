"""Messages and descriptors between processes of one user: whole, in order, or an end."""

import errno
import gc
import os
import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.sources.workers import pipe
from gigl_loader.testing import open_files
from tests.sources.workers.fake_workers import send_object
from tests.support.conditions import no_descriptors_but


@pytest.fixture
def ends() -> Iterator[tuple[pipe.Socket, pipe.Socket]]:
    one, other = pipe.pair()
    with one, other:
        yield one, other


def test_messages_arrive_whole_in_order_and_with_their_descriptors(ends) -> None:
    ours, theirs = ends
    fds = [segments.create_memfd(8) for _ in range(3)]
    for number, fd in enumerate(fds):
        os.pwrite(fd, bytes([number]), 0)
    assert not pipe.is_readable(theirs)
    pipe.send(ours, ("first", [1, 2]), fds)
    pipe.send(ours, None)
    segments.close_fds(fds)
    assert pipe.is_readable(theirs)
    found = pipe.receive(theirs)
    assert found is not None
    message, received = found
    assert message == ("first", [1, 2])
    assert [os.pread(fd, 1, 0)[0] for fd in received] == [0, 1, 2]
    segments.close_fds(received)
    assert pipe.receive(theirs) == (None, [])
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        pipe.receive(theirs)


def test_the_end_of_the_other_side_comes_after_all_that_it_sent(ends) -> None:
    ours, theirs = ends
    pipe.send(ours, "last words")
    ours.close()
    assert pipe.receive(theirs) == ("last words", [])
    assert pipe.receive(theirs) is None
    assert pipe.receive(theirs) is None
    with pytest.raises(OSError, match="Broken pipe"):
        pipe.send(theirs, "too late")


def test_one_that_does_not_read_is_waited_for_as_long_as_the_socket_says(ends) -> None:
    ours, theirs = ends
    ours.settimeout(0.01)
    sent: list[int] = []

    def send_more() -> None:
        while True:
            pipe.send(ours, (len(sent), bytes(50_000)))
            sent.append(len(sent))

    with pytest.raises(TimeoutError):
        send_more()
    for number in sent:  # nothing was sent in part
        found = pipe.receive(theirs)
        assert found is not None
        assert found[0][0] == number
    assert not pipe.is_readable(theirs)


def test_a_message_that_does_not_fit_is_refused_before_it_is_sent(ends) -> None:
    ours, theirs = ends
    with pytest.raises(ProtocolError, match=f"exceeds {pipe.MAX_BYTES}"):
        pipe.send(ours, bytes(pipe.MAX_BYTES))
    assert not pipe.is_readable(theirs)
    largest = bytes(pipe.MAX_BYTES - len(pickle.dumps(bytes(70_000), -1)) + 70_000)
    pipe.send(ours, largest)
    assert pipe.receive(theirs) == (largest, [])


def test_what_arrives_cut_off_leaves_no_descriptor_open(ends) -> None:
    """As from a sender whose limit is another one."""
    ours, theirs = ends
    gc.collect()
    fd = segments.create_memfd(8)
    before = open_files()
    limit = pipe.MAX_BYTES
    try:
        pipe.MAX_BYTES = limit + 100
        pipe.send(ours, bytes(limit), [fd, fd])
    finally:
        pipe.MAX_BYTES = limit
    with pytest.raises(ProtocolError, match="cut off"):
        pipe.receive(theirs)
    assert open_files() == before
    os.close(fd)


def test_objects_of_any_size_with_any_number_of_tensors(ends) -> None:
    """Larger than one message, with more descriptors than go with one."""
    ours, theirs = ends
    gc.collect()
    before = open_files()
    sent = {
        "text": bytes(range(256)) * 2000,
        "tensors": [torch.full((3,), number) for number in range(450)],
        "empty": torch.empty(0, 2),
    }
    thread = threading.Thread(target=send_object, args=(ours, *tensors.dumps(sent)))
    thread.start()
    found = pipe.receive_object(theirs)
    thread.join()
    assert found["text"] == sent["text"]
    assert [one.tolist() for one in found["tensors"]] == [[number] * 3 for number in range(450)]
    assert found["empty"].shape == (0, 2)
    assert open_files() == before, "mappings need no descriptor"
    pipe.send(ours, "next")
    assert pipe.receive(theirs) == ("next", [])


def test_an_object_whose_sender_is_gone_in_between(ends) -> None:
    ours, theirs = ends
    gc.collect()
    before = sum("gigl_loader" in name for name in open_files())
    data = pickle.dumps(np.arange(3))
    fd = segments.create_memfd(8)
    pipe.send(ours, (1, data[:5]), [fd])
    os.close(fd)
    ours.close()
    with pytest.raises(ConnectionError, match="set-up is gone"):
        pipe.receive_object(theirs)
    assert sum("gigl_loader" in name for name in open_files()) == before


def test_no_two_kinds_have_one_name() -> None:
    constants = [name for name in vars(pipe) if name.isalpha() and name.isupper() and len(name) > 1]
    names = {name: getattr(pipe, name) for name in constants}
    assert all(isinstance(value, str) and value for value in names.values())
    assert len(set(names.values())) == len(names)
    told = pipe.__doc__ or ""
    assert [name for name in names if name not in told] == [], "who sends it to whom is not said"


def test_descriptors_that_this_process_cannot_have_are_an_error_that_says_so(ends) -> None:
    ours, theirs = ends
    fds = [segments.create_memfd(8) for _ in range(3)]
    pipe.send(ours, "batch", fds)
    segments.close_fds(fds)
    before = open_files()
    with no_descriptors_but(2), pytest.raises(OSError, match="Too many open files") as told:
        pipe.receive(theirs)
    assert told.value.errno == errno.EMFILE
    assert open_files() == before, "those that came are closed"


def test_received_descriptors_are_not_for_other_programs(ends) -> None:
    ours, theirs = ends
    fd = segments.create_memfd(8)
    pipe.send(ours, "batch", [fd])
    found = pipe.receive(theirs)
    assert found is not None
    segments.close_fds([fd])
    (received,) = found[1]
    assert not os.get_inheritable(received)
    os.close(received)
