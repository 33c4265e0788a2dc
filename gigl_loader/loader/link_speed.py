"""How fast this machine's network is, as its system says."""

from pathlib import Path


def link_bytes_per_s(interfaces: Path = Path("/sys/class/net")) -> float | None:
    """Return the nominal speed of the fastest network interface that is up, in bytes per second.

    None: no interface says, as on systems other than Linux, or in some virtual machines. What
    limits a link elsewhere, as `tc` or a switch, does not show.

    Args:
        interfaces: A folder for each interface, with files ``operstate`` and ``speed`` (Mbit/s).
    """
    speeds = []
    for one in interfaces.glob("*"):
        try:
            if one.name != "lo" and (one / "operstate").read_text().strip() == "up":
                # -1 stands for unknown: virtual interfaces say so, and never are the fastest.
                speeds.append(int((one / "speed").read_text()))
        except (OSError, ValueError):  # wireless ones have no speed, and reading it is an error
            continue
    fastest = max(speeds, default=0)
    # Mbit/s are decimal.
    return fastest * 1e6 / 8 if fastest > 0 else None
