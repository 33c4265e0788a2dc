"""The speed of the network as Linux has it in files."""

from pathlib import Path

from gigl_loader.loader.epochs.epoch import link_bytes_per_s


def _write(folder: Path, name: str, state: str, speed: str) -> None:
    (folder / name).mkdir()
    (folder / name / "operstate").write_text(f"{state}\n")
    (folder / name / "speed").write_text(f"{speed}\n")


def test_the_fastest_interface_that_is_up_counts(tmp_path: Path) -> None:
    for name, state, speed in (
        ("lo", "up", "99999"),
        ("eth0", "up", "2500"),
        ("eth1", "down", "10000"),
        ("w", "up", ""),
        ("eth2", "up", "1000"),
    ):
        _write(tmp_path, name, state, speed)
    assert link_bytes_per_s(tmp_path) == 2500e6 / 8


def test_where_no_interface_says_nothing_is_known(tmp_path: Path) -> None:
    assert link_bytes_per_s(tmp_path / "nowhere") is None
    _write(tmp_path, "veth", "up", "-1")
    assert link_bytes_per_s(tmp_path) is None
