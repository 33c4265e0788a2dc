"""How large a cache of rows is: of a machine's memory, or of a device's."""

from dataclasses import dataclass

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.sizes import parse_size


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Rows of other machines that are cached on this one."""

    size: int | float
    """Bytes; a float in (0, 1]: the share of the remote rows."""
    lookahead: int | None = None
    """Batches whose structure is drawn before the rows of the previous batch are fetched; None: as
    many as the cache needs for its decisions."""

    @classmethod
    def of(
        cls, remote_cache: int | str | None, name: str = "remote_cache"
    ) -> "CacheOptions | None":
        """Return the options for a user's value: ``"2GB"``, ``"20%"``, bytes; None: no cache.

        Args:
            remote_cache: The size.
            name: The keyword, for errors.

        Raises:
            ConfigError: Neither a size nor a share.
        """
        if remote_cache is None:
            return None
        # 0.2 could be a share or a number of bytes: write a share as "20%", floats are refused
        if isinstance(remote_cache, str) and remote_cache.strip().endswith("%"):
            return cls(size=_share(remote_cache, name))
        size = parse_size(remote_cache, name, also=', or a share such as "20%"')
        return cls(size=size)


def _share(text: str, name: str) -> float:
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{name} as a share must be above 0% and at most 100%, got {text!r}")
    return share
