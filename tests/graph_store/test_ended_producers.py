"""What a storage server still has of a producer that is over, while its client stays."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gigl_loader.testing import open_files
from tests.graph_store.in_process import channel_of, create, joined, start, storage, take
from tests.graph_store.store_cluster import HOST

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_the_seeds_of_a_producer_go_with_it() -> None:
    """They waited for Python's collector: a descriptor, and all bytes, of each closed loader."""
    with storage(1) as (endpoint,), joined((HOST, endpoint.address[1])) as cluster:
        (number,) = create(cluster)
        kept = weakref.ref(endpoint.server.producer(number).producer)
        assert kept() is not None
        ends = cluster.connection(0).call(
            "destroy_sampling_producer", producer_id=number, linger_s=0.0
        )
        ends.result(60)
        assert kept() is None


def test_the_memory_of_batches_goes_with_their_producer() -> None:
    """It stayed until the client left: some batches of each loader that it had closed."""

    def slots() -> int:
        return sum(name.startswith("/memfd:gigl_loader.slot") for name in open_files())

    with storage(1) as (endpoint,), joined((HOST, endpoint.address[1])) as cluster:
        before = slots()
        with channel_of(cluster) as channel:
            start(channel, 0)
            take(channel, 5)
            kept = channel.next()
            assert kept is not None
            (number,) = channel._producer_ids.values()
            values = {name: tensor.clone() for name, tensor in kept.message.items()}
            assert slots() > before
        call = cluster.connection(0).call
        call("release_sampling_producer", producer_id=number, consumer=0, linger_s=0.0).result(60)
        assert slots() == before
        assert all(tensor.equal(values[name]) for name, tensor in kept.message.items())
