"""Who holds which partition."""

import pytest

from gigl_loader import ConfigError
from gigl_loader.dataset.identity import check_enough, check_held


def test_all_are_held() -> None:
    check_held(1, [0], who="process")
    check_held(3, [2, 0, 1, 1], who="process")
    check_enough(3, 2, 3, who="process")
    check_enough(2, 0, 5, who="process")


def test_who_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"partitions \[0, 2\] of 4 \(loaded: \[1, 1, 3\]\)"):
        check_held(4, [3, 1, 1], who="process")
    with pytest.raises(ConfigError, match=r"no storage server loaded partitions \[0\] of 2"):
        check_enough(2, 1, 1, who="storage server")
    with pytest.raises(ConfigError, match="2 storage servers cannot hold 3 partitions"):
        check_enough(3, 1, 2, who="storage server")
