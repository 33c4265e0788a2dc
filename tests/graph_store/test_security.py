"""Who may come in, to servers and to their workers; what a server imports; how clusters end."""

import pytest

from gigl_loader import CustomSamplerOptions, FeatureStoreOptions
from gigl_loader.errors import ConfigError, JoinRefusedError, ProtocolError
from gigl_loader.graph_store import init_storage_process
from gigl_loader.runtime.transport import Caller, Mode, Security, certs
from gigl_loader.runtime.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from tests.graph_store.in_process import SECURITY, channel_of, create, joined, start, storage, take
from tests.graph_store.store_cluster import info_of, tiny_graph

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
            start(channel, 0, servers=2)
            encrypted = take(channel)
        for stranger in (Security.local(), SECURITY, Security.resolve("", certs.token(), False)):
            with pytest.raises(JoinRefusedError), joined(endpoints[0].address, 2, stranger):
                pass
    with (
        storage(2) as endpoints,
        joined(endpoints[0].address, 2) as cluster,
        channel_of(cluster) as channel,
    ):
        start(channel, 0, servers=2)
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
    guarded = Security.resolve("", token, False)
    with storage(2, guarded) as endpoints, joined(endpoints[0].address, 2, guarded) as cluster:
        ids = create(cluster, "with workers that listen")
        for endpoint, number in zip(endpoints, ids, strict=True):
            (address,) = endpoint.server.producer(number).producer.recovery.pool.addresses
            assert address is not None, "they listen: two servers"
            # on one machine they take this user's processes alone, and of these the job's own
            guess = Security.resolve("", "guess", False)
            for stranger, refusal in (
                (Security.local(), ProtocolError),
                (guess, JoinRefusedError),
                (guarded, JoinRefusedError),
            ):
                host, port = address
                with (
                    pytest.raises(refusal),
                    Caller(host, port, stranger, "stranger", patience_s=0.0) as caller,
                ):
                    caller.ask("rows", None, object).wait(60)


def test_a_server_imports_what_it_has_leave_for():
    with storage() as (endpoint,), joined(endpoint.address) as cluster:
        for path in (
            "os.path",
            "tests.graph_store.store_cluster_too.Sampler",
            "gigl_loader.graph_store.server.service.X",
            "gigl_loader.sampler.kernels.sampling_kernels.copy_rows",
        ):
            with pytest.raises(ConfigError, match=f"'{path}': start it with --allow-samplers"):
                create(cluster, sampler_options=CustomSamplerOptions(path))
        for path in (
            "os.path",
            "gigl_loader.sampler.kernels.sampling_kernels.copy_rows",
            "gigl_loader.sampler.neighbor.NeighborSampler",
        ):
            with pytest.raises(ConfigError, match=f"feature store '{path}': start it with --allow"):
                create(cluster, feature_store=FeatureStoreOptions(path))
        assert endpoint.server.status()["create_calls"] == 0, "nothing was started"
        allowed = CustomSamplerOptions(
            "tests.graph_store.store_cluster.FailingSampler", {"nap_s": 0.1}
        )
        create(cluster, sampler_options=allowed)
        create(
            cluster,
            sampler_options=CustomSamplerOptions("gigl_loader.sampler.neighbor.NeighborSampler"),
        )
