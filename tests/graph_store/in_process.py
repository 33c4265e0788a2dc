"""Storage servers in threads of this process: real sockets and workers, no process of their own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from gigl_loader.batch.message import Attempt
from gigl_loader.graph_store import RemoteReceivingChannel
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire.requests import ProducerRequest
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport import Security
from gigl_loader.sampler.options import SourceOptions
from tests.graph_store.store_cluster import HOST, SAMPLERS, tiny_partition
from tests.support.glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions

SECURITY = Security.local()


@contextmanager
def storage(
    num_servers: int = 1,
    security: Security = SECURITY,
    patience_s: float = 10.0,
    partition: Callable[[int, int], Any] = tiny_partition,
    kind: type[StorageService] = StorageService,
    channel_memory: int | None = None,
    functions: Sequence[str] = (),
    **how: Any,
) -> Iterator[list[Endpoint]]:
    """Give the endpoints of a storage cluster.

    Args:
        num_servers: How many.
        security: Theirs.
        patience_s: As of `Endpoint`.
        partition: Called with rank and number of servers; returns what each holds.
        kind: What serves it.
        channel_memory: As of `StorageService`.
        functions: As of `StorageService`.
        how: Further arguments of `Endpoint`.
    """
    with ExitStack() as stack:
        endpoints: list[Endpoint] = []
        for rank in range(num_servers):
            leader = None
            if rank > 0:
                leader = LeaderLink(*endpoints[0].address, security, f"server {rank}", patience_s)
            server = kind(
                partition(rank, num_servers),
                rank,
                num_servers,
                security=security,
                allow_samplers=SAMPLERS,
                allow_functions=functions,
                channel_memory=channel_memory,
            )
            how = {"num_jobs": None, **how}
            one = Endpoint(server, HOST, 0, security, leader=leader, patience_s=patience_s, **how)
            stack.callback(one.close)
            one.start()
            endpoints.append(one)
        yield endpoints


@contextmanager
def joined(
    address: tuple[str, int],
    num_servers: int = 1,
    security: Security = SECURITY,
    patience_s: float = 10.0,
    job_name: str = "train",
) -> Iterator[Cluster]:
    """Give the cluster, as the only compute process of a job."""
    cluster = Cluster.join(
        *address,
        job_name=job_name,
        rank=0,
        world_size=1,
        num_servers=num_servers,
        security=security,
        timeout_s=60.0,
        patience_s=patience_s,
    )
    try:
        yield cluster
    finally:
        cluster.close()


def create(
    cluster: Cluster, request_id: str = "", feature_store: Any = None, **changes: Any
) -> list[int]:
    """Create a producer of all 60 seeds, in batches of 2, on each server; return the ids."""
    servers = range(cluster.num_servers)
    options = RemoteDistSamplingWorkerOptions(
        server_rank=list(servers),
        num_workers=1,
        worker_concurrency=4,
        master_addr=HOST,
        master_port=1,
        worker_key=None,
    )
    schema = cluster.connection(0).call("get_schema").result(60)
    arguments = {
        "sampler_input": NodeSamplerInput(torch.arange(60), "default_homogeneous_node_type"),
        "sampling_config": BaseDistLoader.create_sampling_config([3, 2], schema, 2, seed=1),
        "worker_options": options,
        "sampler_options": None,
        **changes,
    }
    answers = [
        cluster.connection(server).call(
            "create_sampling_producer",
            request=ProducerRequest(
                source_options=SourceOptions(seed=1, feature_store=feature_store),
                shard=server,
                num_shards=len(servers),
                request_id=request_id,
            ),
            **arguments,
        )
        for server in servers
    ]
    return [answer.result(100) for answer in answers]


@contextmanager
def channel_of(cluster: Cluster, **how: Any) -> Iterator[RemoteReceivingChannel]:
    """Give a channel over a producer on each server."""
    producers = create(cluster, request_id="of a channel")
    channel = RemoteReceivingChannel(
        list(range(len(producers))),
        dict(enumerate(producers)),
        cluster=cluster,
        **{"timeout": 60.0, **how},
    )
    try:
        yield channel
    finally:
        channel.close()


def start(channel: RemoteReceivingChannel, epoch: int, servers: int = 1) -> None:
    """Begin an epoch of 30 batches, the servers in turn."""
    batches = [(batch % servers, batch) for batch in range(30)]
    channel.start_epoch(Attempt(epoch, epoch + 1), batches, range(30))


def take(channel: RemoteReceivingChannel, most: int = 100) -> list[dict[str, torch.Tensor]]:
    """Return copies of the next batches."""
    found: list[dict[str, torch.Tensor]] = []
    while len(found) < most:
        received = channel.next()
        if received is None:
            break
        found.append({name: tensor.clone() for name, tensor in received.message.items()})
    return found
