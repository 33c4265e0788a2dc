"""Two threads that meet a new class crash msgspec; here one of them waits."""

import ast
from pathlib import Path

from tests.support.scripts import run_python

PACKAGE = Path(__file__).parent.parent.parent / "gigl_loader"

THREADS = """
import dataclasses
import sys
import threading

import msgspec

from gigl_loader.runtime.transport import codec
from gigl_loader.sources.workers.rendezvous import Rendezvous

sys.setswitchinterval(1e-6)


class Alone(Rendezvous):
    def __init__(self):
        super().__init__(0, 1, 1.0)
        self.values = {}

    def publish(self, key, value):
        self.values[key] = value

    def gather(self, key, ranks, more_s=0.0):
        return [self.values[key]]

    def fail(self, words):
        pass

    def close(self):
        pass


def new_message():
    @dataclasses.dataclass(frozen=True)
    class Part:
        numbers: list[int]
        names: dict[str, int]

    @dataclasses.dataclass(frozen=True)
    class Message:
        first: int
        part: Part
        last: str

    return Message(1, Part([2], {"three": 3}), "four")


def agree(message):
    assert Alone().agree("a key", message, type(message)) == [message]


def receive(message):
    body, _ = codec.encode(message)
    _, body, _ = codec.read_header(body)
    assert codec.decode(body, [], type(message)) == message


def meet(message, *ways):
    barrier = threading.Barrier(len(ways))

    def decode(way):
        barrier.wait()
        way(message)

    threads = [threading.Thread(target=decode, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


for _ in range(300):
    meet(new_message(), agree, agree, receive, receive)
"""


def test_threads_decode_a_new_class_at_the_same_time() -> None:
    done = run_python("-c", THREADS)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_decoded_into_a_class_in_another_way() -> None:
    analysed = {"analysed(", "_Header"}  # a struct of its module, analysed when that is imported
    calls = {
        f"{file.relative_to(PACKAGE)}:{node.lineno}": ast.unparse(node)
        for file in PACKAGE.rglob("*.py")
        if file.name != "decoding.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("msgspec.")
        and ast.unparse(node.func).rpartition(".")[2] in ("decode", "convert", "Decoder")
        # without a type it decodes into values of Python's own
        and (ast.unparse(node.func) != "msgspec.msgpack.decode" or "type=" in ast.unparse(node))
    }
    assert len(calls) > 5
    assert {at: call for at, call in calls.items() if not any(map(call.count, analysed))} == {}
