"""A service whose answers the tests know; importable without pytest, for processes of its own."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.runtime.transport import EndReason, Listener, Method, Peer, Security

TOKEN = "kq3Jv0aWZbX7mT9rLs2UdQ"


@dataclass(frozen=True)
class Question:
    number: int
    rows: np.ndarray


@dataclass(frozen=True)
class Answer:
    number: int
    rows: np.ndarray


class Service:
    """A listener and what it was asked."""

    def __init__(
        self, security: Security, host: str = "127.0.0.1", port: int = 0, **options: Any
    ) -> None:
        self.asked: list[int] = []
        self.peers: list[Peer] = []
        self.ends: list[tuple[str, EndReason]] = []
        self.gate = threading.Event()
        self.never: list[Future[Answer]] = []
        self.listener = Listener(
            host,
            port,
            security,
            {
                "double": Method(Question, Answer, self._double),
                "gated": Method(Question, Answer, self._gated),
                "fail": Method(Question, Answer, self._fail),
                "never": Method(Question, Answer, self._never),
                "zeros": Method(Question, Answer, self._zeros),
            },
            "service",
            on_peer=self.peers.append,
            on_end=lambda peer, end: self.ends.append((peer.name, end)),
            **options,
        ).start()

    def _double(self, question: Question, peer: Peer) -> Answer:
        self.asked.append(question.number)
        return Answer(question.number, question.rows * 2)

    def _gated(self, question: Question, peer: Peer) -> Answer:
        self.asked.append(question.number)
        assert self.gate.wait(60)
        return Answer(question.number, question.rows)

    def _fail(self, question: Question, peer: Peer) -> Answer:
        return Answer(1 // (question.number - question.number), question.rows)

    def _never(self, question: Question, peer: Peer) -> "Future[Answer]":
        self.never.append(Future())
        return self.never[-1]

    def _zeros(self, question: Question, peer: Peer) -> Answer:
        self.asked.append(question.number)
        return Answer(question.number, np.zeros(question.number, np.uint8))


def question(number: int, rows: int = 3) -> Question:
    return Question(number, np.arange(rows) + number)


SECURITIES = {"plain": Security.local, "tls": lambda: Security.resolve("", TOKEN, False)}
