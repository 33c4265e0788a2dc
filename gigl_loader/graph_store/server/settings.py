"""Settings of a storage server, checked without torch: a mistake is told before it is imported."""

import ipaddress

from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.wire.membership import check_max_jobs, check_patience
from gigl_loader.runtime.sizes import parse_size
from gigl_loader.runtime.transport import address_towards, refuse_loopback_name, refuse_unspecified
from gigl_loader.sampler.options import check_reconnect

# servers load their partitions at their own pace, and server 0 may be started last
JOIN_TIMEOUT_S = 600.0


def check_settings(
    storage_rank: int,
    num_servers: int,
    *,
    num_jobs: int | None,
    max_jobs: int,
    channel_memory: int | str | None,
    network_timeout: float,
    reconnect_timeout: float,
) -> int | None:
    """Check settings of `init_storage_process`; return ``channel_memory`` in bytes.

    Raises:
        ConfigError: One of them is out of range.
    """
    if not 0 <= storage_rank < num_servers:
        raise ConfigError(f"storage_rank must be in [0, {num_servers}), got {storage_rank}")
    if num_jobs is not None and num_jobs < 1:
        raise ConfigError(f"num_jobs must be at least 1, or None: until told, got {num_jobs}")
    check_max_jobs(max_jobs)
    check_patience(network_timeout)
    check_reconnect(reconnect_timeout)
    return None if channel_memory is None else parse_size(channel_memory, "channel_memory")


def listening_address(storage_rank: int, master: str, host: str | None) -> str:
    """Return the address on which a server listens.

    Args:
        storage_rank: The server.
        master: Address of server 0.
        host: The address that was given for this server, if any.

    Raises:
        ConfigError: Others cannot reach this machine by it, or it is no address.
    """
    address = host or (_master_address(master) if storage_rank == 0 else address_towards(master))
    refuse_unspecified(address)
    return address


def _master_address(host: str) -> str:
    """Return the address on which server 0 listens: the one by which others know it.

    Raises:
        ConfigError: It is a name that means only this machine here, and more to others; or none.
    """
    try:
        # an address is the same everywhere; a name may mean something else on another machine
        ipaddress.ip_address(host)
    except ValueError:
        if host != "localhost":
            refuse_loopback_name(host)
    return host
