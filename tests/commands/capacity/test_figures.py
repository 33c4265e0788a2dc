"""Figures as people write them on a command line."""

from argparse import ArgumentTypeError

import pytest

from gigl_loader.commands.plan import cache_size, count, fanouts, gigabits, gigabytes, share


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (count, "111M", 111e6),
        (count, "1.6B", 1.6e9),
        (count, "1e9", 1e9),
        (count, "1.6E+9", 1.6e9),
        (count, "111,000,000", 111e6),
        (count, "2_000", 2000),
        (count, " 5 k", 5000),
        (gigabits, "25Gbit", 25),
        (gigabits, "25Gb/s", 25),
        (gigabits, "25Gbit/s", 25),
        (gigabits, "100Mbps", 0.1),
        (gigabits, "1Tbit", 1000),
        (gigabits, "10", 10),
        (gigabytes, "64", 64),
        (gigabytes, "64GB", 64),
        (gigabytes, "1.5TB", 1500),
        (gigabytes, "1GiB", 2**30 / 1e9),
        (gigabytes, "500MB", 0.5),
        (share, "20%", 0.2),
        (share, ".2", 0.2),
        (share, "1", 1),
        (share, "0%", 0),
        (cache_size, "20%", 0.2),
        (cache_size, "2GB", 2 * 10**9),
        (cache_size, "2GiB", 2**31),
        (fanouts, "15,10", (15, 10)),
        (fanouts, "all, 10", (-1, 10)),
        (fanouts, "-1", (-1,)),
    ],
)
def test_what_is_meant(read, text: str, value) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (count, "0", "above 0"),
        (count, "-5", "above 0"),
        (count, "many", "111M"),
        (count, "1e999", "111M"),
        (gigabits, "25GB", "bits, not bytes"),
        (gigabits, "3GB/s", "bits, not bytes"),
        (gigabits, "0Gbit", "25Gbit"),
        (gigabits, "fast", "25Gbit"),
        (gigabytes, "0", "above 0"),
        (gigabytes, "-8", "above 0"),
        (gigabytes, "lots", "4GB"),
        (share, "20", "20% or 0.2"),
        (share, "120%", "0 to 1"),
        (share, "nan", "0 to 1"),
        (share, "-5%", "0 to 1"),
        (cache_size, "20", "20% or 0.2"),
        (cache_size, "xGB", "4GB.*share"),
        (fanouts, ",", "15,10"),
        (fanouts, "15;10", "15,10"),
    ],
)
def test_what_is_not_understood_is_said(read, text: str, why: str) -> None:
    with pytest.raises(ArgumentTypeError, match=why):
        read(text)
