"""Runs: the second one opens, a killed one goes on, the shell writes the same, cuts, batches."""

import hashlib
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch_frame import stype
from torch_frame.data.stats import StatType

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    UsageError,
    partition_database,
    partition_tables,
)
from gigl_loader.commands import partition as command
from gigl_loader.partitioning.databases import database_tables, encode
from gigl_loader.partitioning.databases.partition_database import _told_of
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.runtime.object_storage.folder_cache import CACHE_DIR_VARIABLE
from tests.partitioning.databases.folders import (
    DAY,
    KEYS,
    START,
    TEST,
    TWO,
    described,
    edges_of,
    frame_of,
    shop,
    stamps,
    two_tables,
    write_folder,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))


def _bytes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_second_call_maps_the_files_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "shop", shop())
    first = DistDataset.from_database(source, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(database_tables, "tables_of", None)
        second = DistDataset.from_database(str(source), progress=False)
    assert repr(second) == repr(first)
    assert frame_of(second, "orders") == frame_of(first, "orders")
    # other arguments, or other rows, are another graph
    whole = DistDataset.from_database(source, "all", progress=False)
    assert whole.view().num_nodes["orders"] == 400 > first.view().num_nodes["orders"]
    tables = shop(200)
    changed = write_folder(tmp_path / "other", tables)
    (source / "db" / "orders.parquet").write_bytes((changed / "db" / "orders.parquet").read_bytes())
    with pytest.raises(ConfigError, match="in no row of table"):
        DistDataset.from_database(
            write_folder(tmp_path / "third", {**tables, "customers": shop(80)["customers"]}),
            progress=False,
        )


def test_tables_in_memory_are_known_by_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = {name: table.to_pandas() for name, table in shop().items()}
    first = DistDataset.from_database(frames, keys=KEYS, progress=False)
    monkeypatch.setattr(database_tables, "tables_of", None)
    again = DistDataset.from_database({**frames}, keys=KEYS, progress=False)
    assert frame_of(again, "orders") == frame_of(first, "orders")
    frames["orders"].loc[3, "amount"] += 1
    with pytest.raises(TypeError, match="not callable"):
        DistDataset.from_database(frames, keys=KEYS, progress=False)


def test_the_same_database_from_any_source_is_the_same_graph(tmp_path: Path) -> None:
    tables = shop()
    folder = write_folder(tmp_path / "shop", tables)
    frames = {name: table.to_pandas() for name, table in tables.items()}
    roots = []
    options: dict[str, Any] = {"upto": TEST, "stats_upto": "2020-03-01", "progress": False}
    sources: list[Any] = [(folder, None), (tables, KEYS), (frames, KEYS)]
    for i, (source, keys) in enumerate(sources):
        roots.append(tmp_path / str(i))
        partition_database(source, roots[-1], 2, keys=keys, **options)
    skipped = {"database.json", "report.json", "gigl_loader.json"}
    of_all = [
        {
            n: d
            for n, d in _bytes(root).items()
            if n.split("/")[-1] not in {*skipped, "manifest.json"}
        }
        for root in roots
    ]
    assert of_all[0] == of_all[1] == of_all[2]


def test_the_shell_writes_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_folder(tmp_path / "shop", shop())
    (tmp_path / "keys.yaml").write_text(
        yaml.safe_dump({"kinds": {"orders": {"count": "numerical"}}})
    )
    given = ["--database", str(source), "--out", str(tmp_path / "a"), "--num-partitions", "2"]
    given += ["--keys", str(tmp_path / "keys.yaml"), "--upto", "2020-03-05", "--quiet"]
    assert command.main(given) == 0
    assert "run " in capsys.readouterr().out
    kinds = {"orders": {"count": stype.numerical}}
    partition_database(source, tmp_path / "b", 2, kinds=kinds, upto="2020-03-05", progress=False)
    assert _bytes(tmp_path / "a") == _bytes(tmp_path / "b")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--order", "degree"], "--database takes no options of tables: leave out --order"),
        (["--keys", "none.yaml"], "none.yaml cannot be read"),
        (["--upto", "soon"], "upto must be a time"),
    ],
)
def test_wrong_flags(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_folder(tmp_path / "shop", shop(40))
    given = ["--database", str(source), "--root", str(tmp_path / "root"), *flags]
    assert command.main(given) == 2
    assert message in capsys.readouterr().err


def test_a_root_of_another_database_is_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    partition_database(two_tables({"x": [1, 2]}), root, keys=TWO, progress=False)
    other = two_tables({"x": [3, 4, 5]})
    with pytest.raises(ConfigError, match="holds partitions: remove it, or give overwrite=True"):
        partition_database(other, root, keys=TWO, progress=False)
    partition_database(other, root, keys=TWO, overwrite=True, progress=False)
    assert DistDataset.load(root, 0).view().num_nodes["child"] == 3


def test_a_killed_run_goes_on_with_the_tables_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, root = write_folder(tmp_path / "shop", shop()), tmp_path / "root"
    done: list[str] = []
    step = ResumableJob.step

    def killed(job: ResumableJob, name: str, make: Any) -> Any:
        def begun() -> Any:
            done.append(name)
            return make()

        if name == "rows/2" and name not in done:
            done.append(name)
            raise KeyboardInterrupt
        return step(job, name, begun)

    monkeypatch.setattr(ResumableJob, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        partition_database(source, root, progress=False)
    assert done == ["keys", "rows/0", "rows/1", "rows/2"]
    partition_database(source, root, progress=False)
    assert done[4] == "rows/2"
    monkeypatch.undo()
    partition_database(source, tmp_path / "whole", progress=False)
    assert _bytes(root) == _bytes(tmp_path / "whole")
    assert not list(tmp_path.glob(".root.database"))


def test_processes_that_ask_for_the_same_wait_for_the_first(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", shop())
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(partition_database(source, progress=False)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(root, report.run) for root, report in found}) == 1
    assert sorted(report.seconds > 0 for _, report in found) == [False, False, True]


def test_a_cut_is_inclusive_and_its_ids_are_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {
        "users": pa.table({"id": ["a", "b", "c"], "since": stamps([0, 50, None])}),
        "posts": pa.table(
            {
                "id": [9, 8, 7, 6, 5],
                "by": ["a", "b", "c", "a", "b"],
                "at": stamps([10, 20, 30, 30.5, 40]),
                "x": [1.0, 2.0, 3.0, 4.0, 5.0],
            }
        ),
        "likes": pa.table({"post": [9, 7, 6]}),
    }
    keys = {
        "users": {"pkey": "id", "time_col": "since"},
        "posts": {"pkey": "id", "time_col": "at", "fkeys": {"by": "users"}},
        "likes": {"fkeys": {"post": "posts"}},
    }
    dataset = DistDataset.from_database(tables, 30, keys=keys, progress=False)
    assert dataset.view().num_nodes == {"users": 1, "posts": 3, "likes": 3}
    assert dataset.view().node_attributes["posts", "time"].values.tolist() == [10, 20, 30]
    assert dataset.to_original(np.arange(3), "posts").tolist() == [9, 8, 7]
    # b is later and c has no time: no edge, and no error, as a row of that key exists
    assert edges_of(dataset, ("posts", "f2p_by", "users")) == [(0, 0)]
    assert edges_of(dataset, ("likes", "f2p_post", "posts")) == [(0, 0), (1, 2)]
    assert "'by': 2 row(s) name a row of 'users' that is later, or has no time" in caplog.text
    assert "table 'users': 1 of 3 rows have no time: left out" in caplog.text
    numbers = frame_of(dataset, "posts").feat_dict[stype.numerical]
    assert numbers.flatten().tolist() == [1.0, 2.0, 3.0]


def test_files_that_change_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "shop", shop(40))
    check = encode.check_keys

    def check_then_write(*args: Any, **how: Any) -> Any:
        found = check(*args, **how)
        pq.write_table(shop(60)["orders"], source / "db" / "orders.parquet")
        return found

    monkeypatch.setattr(database_tables, "check_keys", check_then_write)
    with pytest.raises(ConfigError, match="shop changed while they were read"):
        partition_database(source, tmp_path / "root", dangling="drop", progress=False)
    assert not (tmp_path / "root").exists()
    assert not (tmp_path / ".root.database").exists()


def test_a_cut_is_in_utc_on_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        tables = {
            "users": pa.table({"id": [0]}),
            "posts": pa.table(
                {"by": [0, 0], "at": stamps([10, 20]).cast(pa.timestamp("us", "UTC"))}
            ),
        }
        keys = {"users": {"pkey": "id"}, "posts": {"time_col": "at", "fkeys": {"by": "users"}}}
        dataset = DistDataset.from_database(tables, 10, keys=keys, progress=False)
        assert dataset.view().node_attributes["posts", "time"].values.tolist() == [10]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["20200131", "1577836800", "now", "infinity", "2020"])
def test_texts_that_numpy_takes_for_other_times(text: str) -> None:
    with pytest.raises(ConfigError, match="upto must be a time such as 2020-01-31"):
        partition_database({}, upto=text)


def test_batches_on_several_partitions_have_the_rows_of_one(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", shop())
    whole = DistDataset.from_database(source, progress=False)
    seeds = torch.arange(40)
    times = torch.linspace(START + 20 * DAY, TEST, 40).long()
    orders, customers = frame_of(whole, "orders"), frame_of(whole, "customers")
    seen = 0
    with DistNeighborLoader(
        whole,
        [5, 5],
        input_nodes=("customers", seeds),
        batch_size=10,
        num_workers=0,
        time_attr="time",
        input_time=times,
    ) as loader:
        for batch in loader:
            some = batch["orders"]
            assert some.tf == orders[some.n_id]
            assert batch["customers"].tf == customers[batch["customers"].n_id]
            assert (some.time <= times[batch["customers"].input_id][some.batch]).all()
            seen += len(some.n_id)
    assert seen > 50
    DistDataset.from_database(source, root=tmp_path / "two", num_partitions=2, progress=False)
    parts = [DistDataset.load(tmp_path / "two", k) for k in range(2)]
    found = [frame_of(part, "orders").feat_dict[stype.timestamp] for part in parts]
    assert torch.equal(torch.cat(found), orders.feat_dict[stype.timestamp])


def test_what_is_known_of_the_database_is_beside_the_partitions(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", shop())
    root = tmp_path / "root"
    partition_database(source, root, progress=False)
    known = described(root)
    names = ("version", "source", "val_timestamp", "test_timestamp", "upto")
    assert [known[n] for n in names] == [1, str(source), START + 60 * DAY, TEST, TEST]
    assert known["tables"]["orders"] == {"pkey": None, **KEYS["orders"]}
    copy = DistDataset.load(root, 0)
    copy.verify()
    assert copy.col_stats["orders"]["channel"][StatType.COUNT][0]
    (root / "database.json").write_text(json.dumps({**known, "upto": 5}))
    with pytest.raises(ConfigError, match=r"database\.json"):
        DistDataset.load(root, 0)


def test_other_datasets_have_no_statistics(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only a dataset of DistDataset"):
        _ = DistDataset().col_stats


def test_progress_names_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(tmp_path / "shop", shop())
    logging.captureWarnings(False)
    partition_database(source, tmp_path / "root")
    assert "read orders" in capsys.readouterr().err
    assert callable(partition_tables)


def test_functions_that_embed_are_told_apart_by_their_code() -> None:
    def made(number: int) -> Any:
        return lambda texts: np.array([[len(one), number] for one in texts])

    by_code = [
        made(1),
        made(2),
        lambda texts: np.array([[len(one), 1] for one in texts]),
        lambda texts: np.array([[len(one) + 1, 1] for one in texts]),
        lambda texts: np.array([[one in {"a", "b"}, 1] for one in texts]),
        lambda texts: np.array([[one in {"a", "c"}, 1] for one in texts]),
    ]
    told = [repr(_told_of(one)) for one in by_code]
    assert len(set(told)) == len(told)
    assert repr(_told_of(made(1))) == told[0]
    assert " at 0x" not in "".join(told), "another process has other addresses"
