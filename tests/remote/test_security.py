"""Who may come in, to servers and to their workers; what a server imports; how clusters end."""

import threading
from contextlib import ExitStack

import pytest
from in_process import SECURITY, channel_of, create, joined, start, storage, take
from store_cluster import info_of, tiny_graph

from gigl_loader import CustomSamplerOptions, FeatureStoreOptions
from gigl_loader.errors import ConfigError, JoinRefusedError, PeerError, ServerDiedError
from gigl_loader.graph_store import init_storage_process
from gigl_loader.options import SAME_MEMORY_VARIABLE
from gigl_loader.testing import wait_until
from gigl_loader.transport import Caller, End, Mode, Security, certs
from gigl_loader.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def nothing_set(monkeypatch):
    for variable in (TLS_DIR_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(certs.make_folder(tmp_path_factory.mktemp("certificates"), ["127.0.0.1"]))


@pytest.fixture(params=["token", "certificates"])
def security(request, folder):
    if request.param == "token":
        return Security.resolve("", certs.token(), False)
    return Security.resolve(folder, "", False)


def test_batches_and_workers_speak_tls(security, monkeypatch):
    """Two servers whose workers ask each other, everything over TCP."""
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    with storage(2, security) as endpoints:
        with joined(endpoints[0].address, 2, security) as cluster, channel_of(cluster) as channel:
            start(channel, 0)
            encrypted = take(channel)
        for stranger in (Security.local(), SECURITY, Security.resolve("", certs.token(), False)):
            with pytest.raises(JoinRefusedError), joined(endpoints[0].address, 2, stranger):
                pass
    with (
        storage(2) as endpoints,
        joined(endpoints[0].address, 2) as cluster,
        channel_of(cluster) as channel,
    ):
        start(channel, 0)
        plain = take(channel)
    assert len(encrypted) == len(plain) == 30
    for one, other in zip(encrypted, plain, strict=True):
        assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.usefixtures("nothing_set")
def test_a_token_given_as_an_argument_protects_the_workers_too(monkeypatch):
    """A stranger without it reads no row from a worker, although the environment has no token."""
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    token = certs.token()
    info = info_of(1, 1)
    with init_storage_process(0, info, tiny_graph().dataset(), token=token) as process:
        security = process.server._security
        assert (security.mode, security.token) == (Mode.TOKEN, token)
    guarded = Security.local(token)
    with storage(2, guarded) as endpoints, joined(endpoints[0].address, 2, guarded) as cluster:
        create(cluster, "with workers that listen")
        for endpoint in endpoints:
            (shared,) = endpoint.server._slots.started().values()
            (address,) = shared.producer._pool.addresses
            assert address is not None, "they listen: two servers"
            for stranger in (Security.local(), Security.local("guess"), guarded):
                with (
                    pytest.raises(JoinRefusedError),
                    Caller(*address, stranger, "stranger", patience_s=0.0) as caller,
                ):
                    caller.ask("rows", None, object).wait(60)


def test_a_server_imports_what_it_has_leave_for():
    with storage() as (endpoint,), joined(endpoint.address) as cluster:
        for path in ("os.path", "store_cluster_too.Sampler", "gigl_loader.remote.service.X"):
            with pytest.raises(ConfigError, match=f"'{path}': start it with --allow-samplers"):
                create(cluster, sampler_options=CustomSamplerOptions(path))
        store = FeatureStoreOptions("os.path")
        with pytest.raises(
            ConfigError, match=r"feature store 'os\.path': start it with --allow-sam"
        ):
            create(cluster, feature_store=store)
        assert endpoint.server.status()["create_calls"] == 0, "nothing was started"
        allowed = CustomSamplerOptions("store_cluster.FailingSampler", {"nap_s": 0.1})
        create(cluster, sampler_options=allowed)
        create(cluster, sampler_options=CustomSamplerOptions(
            "gigl_loader.sampler.neighbor.NeighborSampler"
        ))  # fmt: skip


def _end(endpoints, end, words):
    wait_until(lambda: endpoints[0].status()["servers"] == [1], "server 1 is known")
    endpoints[0].close(end, words)
    return endpoints[1]


def test_the_end_of_server_0_is_told_by_its_kind_and_not_by_its_words():
    with storage(2) as endpoints:
        other = _end(endpoints, End.SHUTDOWN, "any text")
        assert other.over.wait(60)
        assert other.error is None
    with storage(2) as endpoints:
        other = _end(endpoints, End.LOST_PEER, "it was shut down")
        wait_until(lambda: other.error is not None, "server 1 has lost server 0")
        assert isinstance(other.error, ServerDiedError)
        assert "storage server 0 is gone" in str(other.error)


def test_a_server_that_leaves_ends_the_others_and_those_who_join():
    with storage(2) as endpoints:
        wait_until(lambda: endpoints[0].status()["servers"] == [1], "server 1 is known")
        endpoints[1].close()
        wait_until(lambda: endpoints[0].error is not None, "server 0 has lost server 1")
        assert endpoints[0].over.wait(60), "no client is there to wait for"
        with (
            pytest.raises(PeerError, match="the graph is incomplete without it"),
            joined(endpoints[0].address, 2),
        ):
            pass


def test_servers_that_fail_together_say_so_at_once():
    """One cannot start its workers: the others do not wait for their own time limit."""
    bad = CustomSamplerOptions("store_cluster.NoSuchSampler")
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        with pytest.raises(PeerError, match="NoSuchSampler"):
            create(cluster, "bad", sampler_options=bad)
        for endpoint in endpoints:
            wait_until(lambda e=endpoint: e.server.status()["producers"] == {}, "nothing is left")
        table = endpoints[0]._rendezvous
        wait_until(lambda: table._by_name == {}, "and nothing of where they met")


def test_one_job_after_another_and_two_at_once():
    """Clients of the next job wait until all of the one before have left."""
    with storage() as (endpoint,), ExitStack() as stack:
        first = stack.enter_context(joined(endpoint.address))
        assert first.job == 0
        jobs = []

        def second():
            with joined(endpoint.address) as cluster:
                jobs.append(cluster.job)

        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: endpoint.status()["clients"] == [0, 0], "the next client waits")
        assert jobs == []
        first.close()
        thread.join(60)
        assert jobs == [1]
        wait_until(lambda: endpoint.jobs_served == 2, "both jobs are over")
