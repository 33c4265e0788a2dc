"""What is asked and answered comes back the same at the other end, and nothing else does."""

import inspect
from dataclasses import fields

import pytest
import torch

from gigl_loader import CustomSamplerOptions, DatasetSchema, FeatureInfo
from gigl_loader.batch.message import Attempt
from gigl_loader.errors import ProtocolError
from gigl_loader.graph_store import DistServer
from gigl_loader.graph_store.wire import calls, requests
from gigl_loader.graph_store.wire.calls import SchemaMessage
from gigl_loader.graph_store.wire.requests import EpochRequest, ProducerRequest, Runs
from gigl_loader.graph_store.wire.signatures import CALLS
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport.codec import decode, encode, read_header
from gigl_loader.sampler.options import KHopNeighborSamplerOptions, SourceOptions
from tests.support.glt import NodeSamplerInput, RangePartitionBook, RemoteDistSamplingWorkerOptions

USER = ("user", "buys", "item")


def _sent(value):
    """Return ``value`` as it arrives."""
    header, arrays = encode(value)
    _, body, _ = read_header(header)
    return decode(body, [array.copy() for array in arrays], type(value))


def _answered(name, result):
    call = CALLS[name]
    return call.result(_sent(call.respond(result)))


def test_every_method_of_the_table_has_a_field_for_each_parameter() -> None:
    for name, call in CALLS.items():
        parameters = list(inspect.signature(getattr(DistServer, name)).parameters)[1:]
        assert [field.name for field in fields(call.request)] == parameters, name
    assert "fetch" not in CALLS, "batches have a way of their own"
    assert "close" not in CALLS


def test_schemas_and_books() -> None:
    assert {one.name for one in fields(SchemaMessage)} == {
        one.name for one in fields(DatasetSchema)
    }
    wide, narrow = FeatureInfo(3, torch.bfloat16), FeatureInfo(1, torch.float64)
    for nodes in (None, wide, {"user": wide, "item": narrow}, {}):
        for edges in (None, narrow, {USER: narrow}):
            schema = DatasetSchema(
                True, [USER], nodes, edges, "out", {"user": ("time", "mask")}, {USER: ()}, {"u": 3}
            )
            assert _answered("get_schema", schema) == schema
            assert _answered("get_edge_feature_info", edges) == edges
    assert _answered("get_node_partition_book", None) is None
    table = torch.tensor([0, 1, 1, 0], dtype=torch.uint8)
    assert torch.equal(_answered("get_node_partition_book", table), table)
    book = _answered("get_edge_partition_book", RangePartitionBook([(0, 3), (3, 9)], 1))
    assert isinstance(book, RangePartitionBook)
    assert book.partition_idx == 1
    assert book[torch.tensor([2, 3])].tolist() == [0, 1]


def test_a_create_request() -> None:
    given_input = NodeSamplerInput(torch.arange(5), "user")
    given_input.extra = {"labels": torch.tensor([[1, -1]] * 5)}
    schema = DatasetSchema(False, [USER], None, None, "in")
    config = BaseDistLoader.create_sampling_config({USER: [3, -1]}, schema, 4, True, seed=2**63 - 1)
    options = RemoteDistSamplingWorkerOptions(
        server_rank=[0, 1],
        num_workers=2,
        worker_concurrency=3,
        master_addr="10.0.0.1",
        master_port="77",
        buffer_size="2MB",
        worker_key="me",
    )
    options.prefetch_size = 50  # above GLT's own limit
    request = ProducerRequest(
        source_options=SourceOptions(seed=3, timeout_s=1.5),
        shard=None,
        client_ranks=Runs.of((4, 5)),
        request_id="once",
    )
    sampler = CustomSamplerOptions("package.Sampler", {"limit": 3, "names": ["a"], "none": None})
    call = CALLS["create_sampling_producer"]
    sent = call.ask(
        {
            "sampler_input": given_input,
            "sampling_config": config,
            "worker_options": options,
            "sampler_options": sampler,
            "request": request,
        }
    )
    found = call.arguments(_sent(sent))
    assert found["sampling_config"] == config
    assert found["request"] == request
    assert found["sampler_options"] == sampler
    assert torch.equal(found["sampler_input"].node, given_input.node)
    assert found["sampler_input"].input_type == "user"
    assert torch.equal(found["sampler_input"].extra["labels"], given_input.extra["labels"])
    came = found["worker_options"]
    names = ("server_rank", "num_workers", "worker_concurrency", "master_addr", "prefetch_size")
    assert [getattr(came, name) for name in names] == [[0, 1], 2, 3, "10.0.0.1", 50]
    assert (came.master_port, came.buffer_size, came.worker_key) == (77, 2 * 10**6, "me")
    fanout = KHopNeighborSamplerOptions({USER: [3, -1]})
    assert calls.from_message(_sent(calls.to_message(fanout))) == fanout


def test_an_answer_to_another_question_is_refused() -> None:
    header, _ = encode(EpochRequest(attempt=Attempt(0, 1)))
    _, body, _ = read_header(header)
    with pytest.raises(ProtocolError, match="unknown field"):
        decode(body, [], requests.NodeIdsRequest)
