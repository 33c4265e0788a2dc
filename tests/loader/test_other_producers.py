"""Producers of other families behind the loader: graphlearn-torch's protocol and its messages."""

import queue
import threading
from typing import Any, ClassVar

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    DistSamplingProducer,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.sampler.options import ExpansionOptions, SourceOptions, TokenOptions
from gigl_loader.testing import TinyGraph
from tests.support.glt import NodeSamplerInput

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
PLAIN = TinyGraph.random(40, 200, seed=1)
NUM_SEEDS, BATCH_SIZE, DEADLINE_S = 30, 8, 2.0


class Channel:
    """A queue that waits for ever, as graphlearn-torch's remote channel does."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()

    def recv(self) -> Any:
        message = self.queue.get()
        if isinstance(message, BaseException):
            raise message
        return message


class TimedChannel(Channel):
    """The same with a deadline, as its channel in shared memory."""

    def recv(self, timeout_ms: int | None = None) -> Any:
        return self.queue.get(timeout=None if not timeout_ms else timeout_ms / 1000)


class Producer:
    """Sends the seeds of each batch with one neighbour, from a thread."""

    def __init__(self, channel: Any = None, *, short: int = 0, last: Any = None) -> None:
        self.output_channel = Channel() if channel is None else channel
        self.calls: list[str] = []
        self._short, self._last = short, last

    def init(self) -> None:
        self.calls.append("init")

    def produce_all(self) -> None:
        self.calls.append("produce_all")
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        batches = list(torch.arange(NUM_SEEDS).split(BATCH_SIZE))
        for seeds in batches[: len(batches) - self._short]:
            self.output_channel.queue.put(self.message(seeds))
        if self._last is not None:
            self.output_channel.queue.put(self._last)

    def message(self, seeds: torch.Tensor) -> dict[str, torch.Tensor]:
        ids = torch.cat([seeds, torch.tensor([39])])
        here = torch.arange(seeds.numel())
        return {
            "#IS_HETERO": torch.tensor([0]),
            "ids": ids,
            "batch": seeds,
            "rows": here,
            "cols": torch.full_like(here, seeds.numel()),
            "nfeats": ids[:, None].float(),
            "nlabels": ids % 3,
            "#META.round": torch.tensor(len(self.calls)),
        }

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def parts(dataset: DistDataset, **config: Any) -> dict[str, Any]:
    runtime = BaseDistLoader.resolve_runtime()
    port = BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        node_world_size=1,
        master_ip_address=runtime.master_ip_address,
        device=torch.device("cpu"),
        num_cpu_threads=None,
    )
    return {
        "dataset": dataset,
        "sampler_input": NodeSamplerInput(torch.arange(NUM_SEEDS), None),
        "dataset_schema": dataset.schema,
        "runtime": runtime,
        "device": torch.device("cpu"),
        "sampling_config": BaseDistLoader.create_sampling_config(
            [2], dataset.schema, BATCH_SIZE, **config
        ),
        "worker_options": BaseDistLoader.create_colocated_worker_options(
            dataset_num_partitions=1,
            num_workers=1,
            worker_concurrency=2,
            master_ip_address=runtime.master_ip_address,
            master_port=port,
            channel_size="2MB",
            pin_memory=False,
        ),
        "process_start_gap_seconds": 0.0,
    }


def loader_of(producer: Any, **config: Any) -> BaseDistLoader:
    options = SourceOptions(seed=0, timeout_s=DEADLINE_S)
    return BaseDistLoader(
        **parts(PLAIN.dataset(), **config), producer=producer, source_options=options
    )


@pytest.mark.parametrize("channel", [Channel, TimedChannel])
def test_whole_epochs_of_a_producer_of_ones_own(channel: type) -> None:
    producer = Producer(channel())
    with loader_of(producer) as loader:
        assert len(loader) == 4
        assert producer.calls == ["init"]
        for _ in range(2):
            batches = list(loader)
            assert torch.cat([batch.batch for batch in batches]).tolist() == list(range(NUM_SEEDS))
            for batch in batches:
                size = batch.batch_size
                assert batch.edge_index.tolist() == [[size] * size, list(range(size))]
                assert batch.x[:, 0].tolist() == batch.n_id.tolist() == batch.node.tolist()
                assert batch.y.tolist() == (batch.n_id % 3).tolist()
        assert int(batches[0].round) == 3
        assert loader._mp_producer is producer
        assert loader._channel is producer.output_channel
    assert producer.calls == ["init", "produce_all", "produce_all", "shutdown"]


def test_messages_that_a_break_left_come_out_before_the_next_epoch() -> None:
    with loader_of(Producer()) as loader:
        for _ in loader:
            break
        seeds = torch.cat([batch.batch for batch in loader])
        assert seeds.tolist() == list(range(NUM_SEEDS))


def test_they_may_not_be_there() -> None:
    with loader_of(Producer(short=1)) as loader:
        next(iter(loader))
        with pytest.raises(UsageError, match="1 of the 3 messages that it left are not there"):
            iter(loader)


class Worker:
    pid = 7

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode = exitcode

    def is_alive(self) -> bool:
        return self.exitcode is None


@pytest.mark.parametrize("channel", [Channel, TimedChannel])
def test_a_producer_that_ends_short_is_an_error(channel: type) -> None:
    cases: list[tuple[Any, type[PeerError], str]] = [
        (None, PeerTimeoutError, "sent no message for 2.0 s; 3 of the epoch's 4 have come"),
        ([Worker(0)], PeerError, "ended before its epoch did: 3 of the epoch's 4"),
        ([Worker(None), Worker(-9)], WorkerDiedError, "Producer: sampling worker 1 .pid 7. died"),
    ]
    for workers, error, text in cases:
        producer: Any = Producer(channel(), short=1)
        if workers is not None:
            producer._workers = workers
        with loader_of(producer) as loader, pytest.raises(error, match=text):
            list(loader)


def test_a_channel_that_ends_short() -> None:
    with (
        loader_of(Producer(short=1, last=StopIteration())) as loader,
        pytest.raises(PeerError, match="the channel of Producer ended before its epoch did: 3 of"),
    ):
        list(loader)


def test_gigls_message_of_an_error() -> None:
    text = torch.tensor(list(b"Traceback ...\nValueError: no such node"), dtype=torch.uint8)
    with (
        loader_of(Producer(short=1, last={"#SAMPLING_ERROR": text})) as loader,
        pytest.raises(SamplingError, match=r"Producer failed: ValueError: no such node(.|\n)*Trac"),
    ):
        list(loader)


def test_what_it_cannot_promise_is_refused() -> None:
    with loader_of(Producer()) as loader:
        for ask in (loader.state_dict, lambda: loader.load_state_dict({}), lambda: loader([1])):
            with pytest.raises(UsageError, match="Producer"):
                ask()
    with pytest.raises(ConfigError, match="seed=3: a Producer draws by itself"):
        loader_of(Producer(), seed=3)
    with pytest.raises(ConfigError, match="'world' and even_ranks='wrap' need batches by number"):
        BaseDistLoader(**parts(PLAIN.dataset()), producer=Producer(), shard="world")
    tokens = SourceOptions(seed=0, expansion=ExpansionOptions(tokens=TokenOptions(4)))
    with pytest.raises(ConfigError, match=r"^tokens: for the samplers of this package"):
        BaseDistLoader(**parts(PLAIN.dataset()), producer=Producer(), source_options=tokens)


# --- our producer, by a subclass ------------------------------------------------------------------


class Counting(DistSamplingProducer):
    calls: tuple[str, ...] = ()

    def init(self, *arguments: Any, **keywords: Any) -> None:
        self.calls += ("init",)
        super().init(*arguments, **keywords)

    def produce_all(self) -> None:
        self.calls += ("produce_all",)
        super().produce_all()


class Silent(Counting):
    def produce_all(self) -> None:
        pass


class Unstarted(Counting):
    def init(self, *arguments: Any, **keywords: Any) -> None:
        pass


def of_workers(kind: type[DistSamplingProducer], given: dict[str, Any]) -> Any:
    return kind(
        given["dataset"],
        given["sampler_input"],
        given["sampling_config"],
        given["worker_options"],
        BaseDistLoader.create_colocated_channel(given["worker_options"]),
    )


def test_a_subclass_of_our_producer_is_called() -> None:
    given = parts(PLAIN.dataset(), seed=5)
    producer = of_workers(Counting, given)
    with BaseDistLoader(**given, producer=producer) as loader:
        found = [[batch.n_id.tolist() for batch in loader] for _ in range(2)]
        assert producer.is_all_sampling_completed_and_consumed()
        assert producer.calls == ("init", "produce_all", "produce_all")
    with BaseDistLoader(**given, producer=of_workers(DistSamplingProducer, given)) as plain:
        assert found == [[batch.n_id.tolist() for batch in plain] for _ in range(2)]


def test_a_subclass_that_does_not_call_super() -> None:
    given = parts(PLAIN.dataset(), seed=5)
    with (
        BaseDistLoader(**given, producer=of_workers(Silent, given)) as loader,
        pytest.raises(UsageError, match=r"Silent\.produce_all has to call super"),
    ):
        iter(loader)
    with pytest.raises(UsageError, match=r"Unstarted\.init has to call super"):
        BaseDistLoader(**given, producer=of_workers(Unstarted, given))


# --- hooks of the loader --------------------------------------------------------------------------


class Hooked(BaseDistLoader):
    def _init_colocated_connections(self, *_: Any, **given: Any) -> None:
        self.given = dict(given)
        assert not self._shutdowned
        assert self._num_recv == 0
        super()._init_colocated_connections(**given)


class Replaced(BaseDistLoader):
    """The seed's hook, as a subclass writes it anew."""

    def _init_colocated_connections(
        self, dataset: Any, producer: Any, runtime: Any, process_start_gap_seconds: Any
    ) -> None:
        self._channel = producer.output_channel
        self._mp_producer = producer
        self._mp_producer.init()


class Forgotten(BaseDistLoader):
    def _init_colocated_connections(self, *_: Any, **given: Any) -> None:
        pass


def test_the_hook_is_called_with_what_the_seed_gives() -> None:
    given, producer = parts(PLAIN.dataset()), Producer()
    with Hooked(**given, producer=producer) as loader:
        names = ["dataset", "process_start_gap_seconds", "producer", "runtime"]
        assert sorted(loader.given) == names
        assert loader.given["producer"] is producer
        assert sum(batch.batch_size for batch in loader) == NUM_SEEDS


@pytest.mark.parametrize("own", [True, False])
def test_a_hook_may_replace_ours(own: bool) -> None:
    given = parts(PLAIN.dataset())
    producer: Any = of_workers(Counting, given) if own else Producer()
    with Replaced(**given, producer=producer) as loader:
        for _ in range(2):
            assert sum(batch.batch_size for batch in loader) == NUM_SEEDS
    assert list(producer.calls[:3]) == ["init", "produce_all", "produce_all"]


def test_a_hook_that_starts_nothing() -> None:
    with pytest.raises(
        UsageError, match=r"has to call super\(\), or set _channel and _mp_producer"
    ):
        Forgotten(**parts(PLAIN.dataset()), producer=Producer())


# --- messages -------------------------------------------------------------------------------------


class Reads(DistNeighborLoader):
    """What GiGL's loaders do with a message, and what users do."""

    def _collate_fn(self, msg: Any) -> Any:
        self.keys = sorted(msg.keys())
        rest = {name: value for name, value in msg.items() if not name.startswith("#META.")}
        for own, glt in self.pairs.items():
            assert torch.equal(msg[own], msg[glt])
            assert own in msg
            assert glt in msg
            assert msg.get(own) is not None
        assert msg.get("no such key", 5) == 5
        assert "no such key" not in msg
        assert msg.pop("no such key", 6) == 6
        with pytest.raises(KeyError):
            msg.pop("no such key")
        taken = msg.pop(next(iter(self.pairs)))
        assert not any(name in msg for name in next(iter(self.pairs.items())))
        msg[next(iter(self.pairs))] = taken
        if self.changes:
            rest[self.changes] = rest[self.changes] + 1
        return super()._collate_fn(rest)

    pairs: ClassVar[dict[str, str]] = {}
    changes = ""


class Plainly(Reads):
    pairs: ClassVar = {"n_id": "ids", "x": "nfeats", "y": "nlabels"}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_hook_reads_and_writes_graphlearn_torchs_keys(num_workers: int) -> None:
    how: dict[str, Any] = {"batch_size": 7, "seed": 3, "num_workers": num_workers}
    dataset, seeds = PLAIN.dataset(), torch.arange(NUM_SEEDS)
    with (
        DistNeighborLoader(dataset, [3, 2], seeds, **how) as plain,
        Plainly(dataset, [3, 2], seeds, **how) as loader,
    ):
        for one, other in zip(plain, loader, strict=True):
            assert one.to_dict().keys() == other.to_dict().keys()
            assert all(
                torch.equal(value, other[name])
                for name, value in one.to_dict().items()
                if isinstance(value, torch.Tensor)
            )
        wanted = {"#IS_HETERO", "batch", "cols", "ids", "nfeats", "nlabels", "num_sampled_edges"}
        assert wanted | {"num_sampled_nodes", "rows"} <= set(loader.keys)
        assert not {"n_id", "x", "y", "edge_index"} & set(loader.keys)
        loader.changes = "nfeats"
        for one, other in zip(plain, loader, strict=True):
            assert torch.equal(one.x + 1, other.x)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed_messages(edge_dir: Any) -> None:
    graph = TinyGraph(
        {"user": 20, "item": 15}, {BUYS: [(0, 1), (3, 2), (5, 1)], KNOWS: [(1, 4), (2, 2), (4, 0)]}
    )
    dataset = DistDataset.from_pyg(graph.to_pyg(), edge_dir=edge_dir)
    seeds = ("item" if edge_dir == "in" else "user", torch.arange(10))
    how: dict[str, Any] = {"batch_size": 4, "seed": 3, "num_workers": 0}

    class Typed(Reads):
        pairs: ClassVar = {"user.n_id": "user.ids", "item.n_id": "item.ids"}

    with (
        DistNeighborLoader(dataset, [3, 2], seeds, **how) as plain,
        Typed(dataset, [3, 2], seeds, **how) as loader,
    ):
        for one, other in zip(plain, loader, strict=True):
            assert one.edge_types == other.edge_types
            for edge_type in one.edge_types:
                assert torch.equal(one[edge_type].edge_index, other[edge_type].edge_index)
            for node_type in one.node_types:
                assert torch.equal(one[node_type].n_id, other[node_type].n_id)
        names = {"in": "item__rev_buys__user", "out": "user__buys__item"}
        assert {f"{names[edge_dir]}.rows", f"{names[edge_dir]}.cols"} <= set(loader.keys)


class TypedProducer(Producer):
    """Isolated seeds: no edges, no counts of them; graphlearn-torch 0.2.4 itself fails on it."""

    def message(self, seeds: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "#IS_HETERO": torch.tensor([1]),
            "user.ids": seeds,
            "user.batch": seeds,
            "#META.round": torch.tensor(1),
            "trace": torch.tensor(7),  # what nobody here knows changes nothing
        }


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_typed_message_that_leaves_out_what_is_empty(edge_dir: Any) -> None:
    graph = TinyGraph({"user": 40, "item": 15}, {BUYS: [(0, 1)], KNOWS: [(1, 4)]})
    given = parts(DistDataset.from_pyg(graph.to_pyg(), edge_dir=edge_dir))
    given["sampler_input"] = NodeSamplerInput(torch.arange(NUM_SEEDS), "user")
    with BaseDistLoader(**given, producer=TypedProducer()) as loader:
        batches = list(loader)
        assert torch.cat([batch["user"].batch for batch in batches]).tolist() == list(range(30))
        reverse = ("item", "rev_buys", "user")
        assert {BUYS if edge_dir == "in" else reverse, KNOWS} == set(batches[0].edge_types)
        assert all(store.edge_index.shape == (2, 0) for store in batches[0].edge_stores)
        assert int(batches[0].round) == 1


class Stuck(Producer):
    """Waits for its process at a barrier, as graphlearn-torch's does."""

    def __init__(self, exitcode: int | None) -> None:
        super().__init__()
        self._workers = [Worker(exitcode)]
        self.freed = threading.Event()

    def init(self) -> None:
        self.freed.wait()

    def shutdown(self) -> None:
        super().shutdown()
        self.freed.set()


@pytest.mark.parametrize(
    ("exitcode", "error", "words"),
    [(1, WorkerDiedError, "pid 7"), (None, PeerTimeoutError, r"Stuck.init\(\) took more than 2")],
)
def test_a_start_that_waits_for_a_dead_process_ends(
    exitcode: int | None, error: type[Exception], words: str
) -> None:
    producer = Stuck(exitcode)
    with pytest.raises(error, match=words):
        loader_of(producer)
    assert producer.calls == ["shutdown"]
