"""Tasks of a database as seeds: RelBench's rows, nothing later than a seed, nothing hidden."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch_geometric.data import HeteroData

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PPRSamplerOptions,
    RemoteDistDataset,
    Task,
    UsageError,
)
from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.seeds.split import Split, fanouts_of
from gigl_loader.partitioning.databases.source import open_database
from gigl_loader.testing import batch_digest, run_cluster, run_ranks
from tests.support import relbench_folder

SPLITS: Any = ("train", "val", "test")
START = int(relbench_folder.START.timestamp())
FANOUT = [4, 3]
HOW: dict[str, Any] = {"batch_size": 32, "seed": 3, "num_workers": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return relbench_folder.write(tmp_path_factory.mktemp("shop") / "shop")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> DistDataset:
    return _opened(folder)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables, keys = relbench_folder.timed_rows()
    return relbench_folder.write(
        tmp_path_factory.mktemp("timed") / "shop", tables=tables, keys=keys
    )


def _opened(folder: Path, **how: Any) -> DistDataset:
    root = folder.parent / f"parts{how.get('num_partitions', '')}{how.get('upto', '')}"
    return DistDataset.from_database(folder, root=root, dangling="drop", progress=False, **how)


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", relbench_folder.TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_those_of_relbench(folder: Path, name: str, split: Any) -> None:
    """Under any pandas: its trouble is with seconds, not with the rows."""
    relbench = pytest.importorskip("relbench")
    theirs = relbench.load_dataset(folder).load_task(name).get_table(split, mask_input_cols=False)
    task = Task.from_folder(folder, name)
    found = task.split(split, mask=False)
    ours = found.table.to_pandas()
    assert list(ours.columns) == list(theirs.df.columns)
    assert len(ours) == len(found) == len(theirs.df) > 0
    for column in ours.columns:
        for one, other in zip(ours[column], theirs.df[column], strict=True):
            assert list(one) == list(other) if column == "article_id" else one == other
    seconds = theirs.df[theirs.time_col].to_numpy().astype("datetime64[ns]").astype(np.int64)
    assert found.time is not None
    assert found.time.tolist() == (seconds // 10**9).tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_seconds_whatever_the_unit(folder: Path, tmp_path: Path, unit: str) -> None:
    other = relbench_folder.write(tmp_path / "shop", unit=unit)
    for name in relbench_folder.TASKS:
        for split in SPLITS:
            one, two = (Task.from_folder(at, name).split(split) for at in (folder, other))
            assert one.time is not None
            assert two.time is not None
            assert torch.equal(one.time, two.time)
            assert torch.equal(one.nodes[1], two.nodes[1])


def test_the_test_is_masked_as_in_relbench(dataset: DistDataset) -> None:
    split = dataset.task("user-spends").split("test")
    assert split.target is None
    assert split.table.column_names == ["timestamp", "customer_id"]
    assert dataset.task("user-spends").split("test", mask=False).target is not None
    with pytest.raises(ConfigError, match="give mask=False"):
        _ = dataset.task("user-article").split("test").edges
    with DistNeighborLoader(dataset, FANOUT, split, **HOW) as loader:
        assert "y" not in next(iter(loader))["customers"]


def test_labels_that_are_shipped_are_taken_as_they_are(folder: Path, tmp_path: Path) -> None:
    shipped = relbench_folder.write(tmp_path / "shop")
    rows = pa.table(
        {
            "timestamp": pa.array([86_400 * 10**6 + 1, 5], pa.timestamp("us")),
            "customer_id": [7, 3],
            "spends": [0.5, float("nan")],
        }
    )
    pq.write_table(rows, shipped / "tasks/user-spends/train.parquet")
    task = Task.from_folder(shipped, "user-spends")
    split = task.split("train")
    assert split.nodes == ("customers", split.nodes[1])
    assert split.nodes[1].tolist() == [7, 3]
    assert split.time is not None
    assert split.time.tolist() == [86_400, 0]
    assert split.target is not None
    assert split.target[0] == 0.5
    assert split.target[1].isnan()
    assert split.table["timestamp"].equals(rows["timestamp"])
    classes = replace(task, task_type="multiclass_classification", target="customer_id").split(
        "train"
    )
    assert classes.target is not None
    assert classes.target.dtype == torch.int64
    several = rows.set_column(2, "spends", pa.array([[1, 0, 1], [0, 0, 1]]))
    pq.write_table(several, shipped / "tasks/user-spends/train.parquet")
    labels = replace(task, task_type="multilabel_classification").split("train").target
    assert labels is not None
    assert labels.tolist() == [[1, 0, 1], [0, 0, 1]]


# --- seeds of loaders -----------------------------------------------------------------------------


def _check_past(batch: HeteroData, seed_time: torch.Tensor) -> int:
    """Check that no node of a tree is later than its seed; return how many were looked at."""
    looked = 0
    for name in batch.node_types:
        store = batch[name]
        limit = seed_time[store.batch]
        is_root = torch.arange(store.num_nodes) < int(store.num_sampled_nodes[0])
        assert bool((store.time[~is_root] <= limit[~is_root]).all()), name
        day = store.tf.feat_dict[_stype("numerical")]
        day = day[:, store.tf.col_names_dict[_stype("numerical")].index("day")]
        limit_day = ((limit - START) / 86_400.0).float()
        assert bool((day[~is_root] <= limit_day[~is_root]).all()), name
        looked += int((~is_root).sum())
    return looked


def _stype(name: str) -> Any:
    from torch_frame import stype

    return stype(name)


def _batches(given: Any, split: Any, **how: Any) -> list[tuple[str, list[int]]]:
    """Return digest and rows of each batch, which are checked."""
    found = []
    with DistNeighborLoader(given, FANOUT, split, shuffle=True, **{**HOW, **how}) as loader:
        for batch in loader:
            store = batch["customers"]
            assert torch.equal(store.y, split.target[store.input_id])
            assert torch.equal(store.seed_time, split.time[store.input_id])
            assert torch.equal(store.n_id[: store.batch_size], split.nodes[1][store.input_id])
            assert _check_past(batch, store.seed_time)
            found.append((batch_digest(batch), store.input_id.tolist()))
    return found


def test_nothing_is_later_than_a_seed(timed: Path) -> None:
    split = _opened(timed).task("user-spends").split("train")
    found = _batches(_opened(timed), split)
    assert sorted(row for _, rows in found for row in rows) == list(range(len(split)))


def test_there_are_rows_from_the_future(timed: Path) -> None:
    """Else the test above would say nothing: with times left out, later rows come."""
    given = _opened(timed)
    split = given.task("user-spends").split("train")
    assert split.time is not None
    how = {**HOW, "disjoint": True}
    later = dict.fromkeys(relbench_folder.KEYS, 0)
    with DistNeighborLoader(given, FANOUT, split.nodes, **how) as loader:
        for batch in loader:
            limits = split.time[batch["customers"].input_id]
            for name in later:
                later[name] += int((batch[name].time > limits[batch[name].batch]).sum())
    assert all(later.values())


@pytest.mark.multiprocess
def test_in_workers(timed: Path) -> None:
    split = _opened(timed).task("user-spends").split("train")
    known = _batches(_opened(timed), split)
    assert _batches(_opened(timed), split, num_workers=2) == known


def _of_a_rank(rank: int, size: int, folder: Path, known: list[Any], how: dict[str, Any]) -> None:
    part = _opened(folder, num_partitions=2, partition_idx=rank)
    split = part.task("user-spends").split("train")
    found = _batches(part, split, shard="world", **{"num_workers": 1, **how})
    # numbers of nodes are those of two partitions; rows of the task are the same
    assert [rows for _, rows in found] == [rows for _, rows in known[rank::size]]


@pytest.mark.multiprocess
@pytest.mark.parametrize("how", [{"remote_cache": "20%"}, {"exchange": "collective"}], ids=str)
def test_on_two_ranks(timed: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    _opened(timed, num_partitions=2)
    known = _batches(_opened(timed), _opened(timed).task("user-spends").split("train"))
    run_ranks(_of_a_rank, timed, known, how, world_size=2, tmp_path=tmp_path)


def _stored_part(rank: int, servers: int, *, folder: Path) -> DistDataset:
    return _opened(folder, num_partitions=servers, partition_idx=rank)


def _of_a_client(info: Any, rank: int, folder: Path, known: list[Any]) -> None:
    remote = RemoteDistDataset(info, rank)
    part = _opened(folder, num_partitions=2)
    assert str(remote.col_stats) == str(part.col_stats)
    split = part.task("user-spends").split("train")
    found = _batches(remote, split, shard="none", num_workers=1)
    assert [rows for _, rows in found] == [rows for _, rows in known]
    links = part.task("user-article").split("train")
    assert _link_rows(remote, links, shard="none", num_workers=1) > 0


@pytest.mark.multiprocess
def test_from_a_graph_store(timed: Path, tmp_path: Path) -> None:
    _opened(timed, num_partitions=2)
    known = _batches(_opened(timed), _opened(timed).task("user-spends").split("train"))
    stored = _StoredPart(timed)
    run_cluster(_of_a_client, timed, known, dataset=stored, tmp_path=tmp_path, servers=2, clients=1)


class _StoredPart:
    """Opens the partition of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, rank: int, servers: int) -> DistDataset:
        return _stored_part(rank, servers, folder=self.folder)


def _link_rows(given: Any, split: Any, **how: Any) -> int:
    looked = 0
    keywords = {"neg_sampling": "triplet", "shuffle": True, **HOW, **how}
    with DistLinkNeighborLoader(given, FANOUT, split, **keywords) as loader:
        for batch in loader:
            own, other = batch["customers"], batch["articles"]
            rows = batch["customers", "user-article", "articles"].input_id
            assert torch.equal(own.n_id[own.src_index], split.nodes[1][rows])
            pairs = torch.stack([rows, other.n_id[other.dst_pos_index]]).t().tolist()
            assert {*map(tuple, pairs)} <= {*map(tuple, split.pairs[1].t().tolist())}
            when = own.seed_time
            assert torch.equal(when, split.time[rows])
            assert bool((other.time[other.dst_neg_index] <= when).all())
            looked += _check_past(batch, when)
    return looked


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_recommendation_as_seed_edges(timed: Path) -> None:
    given = _opened(timed)
    split = given.task("user-article").split("train")
    assert _link_rows(given, split) > 0
    table, marks = split.dst_nodes
    assert (table, marks.layout, marks.dtype) == ("articles", torch.sparse_csr, torch.bool)
    assert tuple(marks.shape) == (len(split), given.view().num_nodes["articles"])
    lists = split.table["article_id"].to_pylist()
    counts = marks.crow_indices().diff().tolist()
    assert counts == [len(row) for row in lists]
    assert given.to_original(marks.col_indices(), "articles").tolist() == [
        key for row in lists for key in row
    ]
    assert split.edges[0] == ("customers", "user-article", "articles")


# --- what is hidden -------------------------------------------------------------------------------


def _columns(batch: HeteroData, table: str) -> list[str]:
    names = batch[table].tf.col_names_dict.values()
    return sorted(name for several in names for name in several)


def test_removed_columns_reach_no_batch(dataset: DistDataset) -> None:
    task = dataset.task("transaction-price")
    with DistNeighborLoader(dataset, FANOUT, task.split("train"), **HOW) as loader:
        for batch in loader:
            assert _columns(batch, "transactions") == ["t_dat"]
            assert batch["transactions", "f2p_customer_id", "customers"].edge_index.numel()
    assert set(task.col_stats["transactions"]) == {"t_dat"}
    assert set(dataset.col_stats["transactions"]) == {"t_dat", "price", "channel"}
    hidden = (("customers", "segment"), ("customers", "age"), ("transactions", "article_id"))
    task = replace(dataset.task("user-spends"), remove_columns=hidden)
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.append(batch)
        return batch

    with DistNeighborLoader(dataset, FANOUT, task.split("train"), transform=look, **HOW) as loader:
        for batch in loader:
            assert batch is seen[-1]  # the user's transform sees what is left
            assert _columns(batch, "customers") == ["__const__"]
            assert batch["customers"].tf.num_rows == batch["customers"].num_nodes
            assert batch["articles"].num_nodes == 0
            assert batch["transactions", "f2p_article_id", "articles"].edge_index.size(1) == 0
            assert batch["transactions"].num_nodes > 0


def test_a_key_is_hidden_from_fan_outs_by_type_too(dataset: DistDataset) -> None:
    task = replace(dataset.task("user-spends"), remove_columns=(("transactions", "article_id"),))
    kinds = dataset.schema.edge_types
    assert kinds is not None
    for given in ([2, 1], {kind: [2, 1] for kind in kinds}):
        found = fanouts_of(task.split("train"), given, dataset.schema)
        assert {kind[1] for kind, hops in found.items() if hops == [0, 0]} == {
            "f2p_article_id",
            "rev_f2p_article_id",
        }
        assert sum(hops == [2, 1] for hops in found.values()) == 2
    split = task.split("train")
    for wrong in ({"sampler_options": PPRSamplerOptions()}, {"subgraph_type": "induced"}):
        with pytest.raises(ConfigError, match="hides foreign keys by fan-outs of 0"):
            DistNeighborLoader(dataset, FANOUT, split, **wrong)


def test_a_key_of_another_table_with_the_same_name_stays(tmp_path: Path) -> None:
    tables = {"users": pa.table({"id": [0, 1], "by": [1, 0]}), "posts": pa.table({"by": [0, 1]})}
    keys = {"users": {"pkey": "id", "fkeys": {"by": "users"}}, "posts": {"fkeys": {"by": "users"}}}
    dataset = DistDataset.from_database(tables, root=tmp_path / "r", keys=keys, progress=False)
    given: Any = {"nodes": ("users", torch.arange(2)), "time": None, "target": None}
    split = Split("t", "train", pa.table({}), **given, hidden={"users": ["by"]})
    found = fanouts_of(split, [1], dataset.schema)
    assert {kind for kind, hops in found.items() if hops == [0]} == {
        ("users", "f2p_by", "users"),
        ("users", "rev_f2p_by", "users"),
    }


def test_labels_of_a_folder_that_has_changed_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = relbench_folder.write(tmp_path / "shop")
    dataset = _opened(folder)
    dataset.task("user-spends")
    assert "has changed since" not in caplog.text
    path = folder / "db" / "transactions.parquet"
    pq.write_table(pq.read_table(path).slice(0, 10), path)
    dataset.task("user-spends")
    assert "shop has changed since the dataset was made of it" in caplog.text


@pytest.mark.parametrize("lost", ["time", "target"])
def test_a_query_without_a_time_or_a_target(dataset: DistDataset, lost: str) -> None:
    task = replace(dataset.task("user-spends"), **{lost: None})
    with pytest.raises(ConfigError, match="sql needs time="):
        task.split("train")


@pytest.mark.parametrize("key", ["c", "c::DECIMAL(18, 0)", "c::HUGEINT"])
def test_times_and_keys_of_any_name_and_size(tmp_path: Path, key: str) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"""
            CREATE TABLE p (id BIGINT PRIMARY KEY);
            INSERT INTO p VALUES ({2**53}), ({2**53 + 1});
            CREATE TABLE s (c BIGINT REFERENCES p (id), "at" TIMESTAMP);
            INSERT INTO s SELECT {2**53} + i % 2, make_timestamp(i * 86400000000)
            FROM range(40) t(i);
        """)
    task = Task(
        entity=("p", "c"),
        time="order",
        target="n",
        timedelta="4 days",
        val_timestamp="1970-01-20",
        test_timestamp="1970-01-30",
        sql=f"""SELECT timestamp AS "order", {key} AS c, count(*) AS n FROM timestamps, s
            WHERE "at" > timestamp AND "at" <= timestamp + INTERVAL '{{timedelta}}' GROUP BY ALL""",
    )
    dataset = DistDataset.from_database(
        path, root=tmp_path / "root", keys={"s": {"time_col": "at"}}, progress=False
    )
    split = dataset.task(task).split("train")
    assert split.time is not None
    assert split.time.unique().tolist() == [3 * 86_400 + 4 * 86_400 * i for i in range(4)]
    assert split.nodes[1].tolist() == [0, 1] * 4


def test_times_that_are_floats_with_a_missing_one(tmp_path: Path) -> None:
    days = [number * 86_400 + 0.5 for number in range(19)]
    tables = {
        "p": pa.table({"id": [0, 1]}),
        "s": pa.table({"c": [0, 1] * 10, "at": [*days, float("nan")]}),
    }
    keys: dict[str, Any] = {"p": {"pkey": "id"}, "s": {"time_col": "at", "fkeys": {"c": "p"}}}
    task = Task(
        entity=("p", "c"),
        time="timestamp",
        target="n",
        timedelta="2 days",
        val_timestamp=10 * 86_400,
        test_timestamp=14 * 86_400,
        sql="SELECT timestamp, 1 AS c, 2.0 AS n FROM timestamps",
        database=open_database(tables, keys),
    )
    times = {name: task.split(name).time for name in SPLITS}
    # the first row is half a second after 1970 began, so that second is no seed's
    wanted = {"train": [2, 4, 6, 8], "val": [10], "test": [14]}
    for name, of in times.items():
        assert of is not None
        assert [at / 86_400 for at in of.tolist()] == wanted[name]


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (("transactions", "t_dat"), "the time column of table 'transactions'"),
        (("transactions", "colour"), "there is none of that name"),
        (("shops", "name"), "there is none of that name"),
    ],
)
def test_what_cannot_be_hidden(dataset: DistDataset, hidden: tuple[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(dataset.task("user-spends"), remove_columns=(hidden,)).split("train")


# --- other databases ------------------------------------------------------------------------------


@pytest.fixture
def text_keys(tmp_path: Path) -> Path:
    """A DuckDB file whose keys are text, in no order."""
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE users (name VARCHAR PRIMARY KEY, age DOUBLE)")
        connection.execute(
            "CREATE TABLE visits (seen TIMESTAMP, who VARCHAR REFERENCES users (name), len DOUBLE)"
        )
        people = [f"user {number * 7 % 11}" for number in range(11)]
        connection.executemany("INSERT INTO users VALUES (?, ?)", [(p, 20.0) for p in people])
        connection.execute(
            "INSERT INTO visits SELECT TIMESTAMP '2021-01-01' + INTERVAL (i) HOURS, 'user ' || "
            "(i * 5 % 11), i FROM range(2000) t(i)"
        )
    return path


SQL = """
WITH per AS (
    SELECT timestamp AS t, who, count(*) AS visits FROM timestamps, visits
    WHERE seen > timestamp AND seen <= timestamp + INTERVAL '{timedelta}' GROUP BY ALL
)
SELECT * FROM per WHERE visits > 0 -- all
"""
BY_HAND = Task(
    sql=SQL,
    entity=("users", "who"),
    target="visits",
    time="t",
    timedelta="1 week",
    val_timestamp="2021-02-15",
    test_timestamp="2021-03-01",
)


def test_sql_on_a_file_with_keys_of_text(text_keys: Path, tmp_path: Path) -> None:
    keys = {"visits": {"time_col": "seen"}}
    dataset = DistDataset.from_database(
        text_keys, root=tmp_path / "parts", keys=keys, progress=False
    )
    task = dataset.task(BY_HAND)
    split = task.split("train")
    assert split.time is not None
    assert split.target is not None
    per_time = np.unique(split.time.numpy(), return_counts=True)
    week, val = 7 * 86_400, 1_613_347_200
    assert per_time[0].tolist() == [val - week * number for number in (6, 5, 4, 3, 2, 1)]
    assert per_time[1].tolist() == [11] * 6
    who = dataset.to_original(split.nodes[1], "users").tolist()
    assert who == split.table["who"].to_pylist()
    # in plain Python
    at, of = 1_609_459_200 + 3600 * np.arange(2000), [f"user {i * 5 % 11}" for i in range(2000)]
    for name, time, visits in zip(who, split.time.tolist(), split.target.tolist(), strict=True):
        within = (at > time) & (at <= time + week)
        assert visits == sum(of[i] == name for i in np.flatnonzero(within))
    with DistNeighborLoader(dataset, [3], split, **HOW) as loader:
        batch = next(iter(loader))
        assert torch.equal(batch["users"].y, split.target[batch["users"].input_id])


def test_rows_without_a_key_must_be_in_order(folder: Path, tmp_path: Path) -> None:
    """Their numbers name them, before and after a cut."""
    tables = relbench_folder.rows()
    of = tables["transactions"]
    tables["transactions"] = {name: list(values)[::-1] for name, values in of.items()}
    other = relbench_folder.write(tmp_path / "shop", tables=tables)
    with pytest.raises(ConfigError, match="no primary key and is not sorted by 't_dat'"):
        Task.from_folder(other, "transaction-price").split("train")
    assert len(Task.from_folder(other, "user-spends").split("train")) > 0


def test_keys_of_labels_that_name_no_row(folder: Path, text_keys: Path, tmp_path: Path) -> None:
    task = Task.from_folder(folder, "user-spends")
    half = "SELECT timestamp, 0.5 AS customer_id, 1 AS spends FROM timestamps"
    assert len(replace(task, sql=half).split("train")) == 0  # it is no customer
    rows = {"timestamp": [5, 6], "customer_id": [7, 0.5], "spends": [1, 2]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    with pytest.raises(ConfigError, match="is null in 1 rows"):
        replace(task, folder=tmp_path).split("train")
    pq.write_table(pa.table({**rows, "customer_id": [7.0, 3.0]}), tmp_path / "train.parquet")
    split = replace(task, folder=tmp_path).split("train")
    assert (split.nodes[1].dtype, split.nodes[1].tolist()) == (torch.int64, [7, 3])
    words = {**rows, "customer_id": [1, 2], "spends": [["a"], ["b"]]}
    pq.write_table(pa.table(words), tmp_path / "train.parquet")
    with pytest.raises(ConfigError, match="'spends' has no numbers"):
        replace(task, folder=tmp_path).split("train")
    database = open_database(text_keys, {"visits": {"time_col": "seen"}})
    with pytest.raises(ConfigError, match="keys of 'users' are text"):
        replace(BY_HAND, database=database).split("train")


def _shipped(task: Task, folder: Path, **columns: Any) -> Split:
    pq.write_table(pa.table({"timestamp": [5, 6], **columns}), folder / "train.parquet")
    return replace(task, folder=folder).split("train")


def test_a_class_with_a_fraction_is_refused(folder: Path, tmp_path: Path) -> None:
    kind = "multiclass_classification"
    task = replace(Task.from_folder(folder, "user-spends"), task_type=kind)
    keys = {"customer_id": [7, 3]}
    with pytest.raises(ConfigError, match="'spends' is null in 1 rows, or has no whole number"):
        _shipped(task, tmp_path, **keys, spends=[1.7, 2.0])
    target = _shipped(task, tmp_path, **keys, spends=[1.0, 2.0]).target
    assert target is not None
    assert (target.dtype, target.tolist()) == (torch.int64, [1, 2])


def test_keys_as_floats_that_may_be_others_are_refused(folder: Path, tmp_path: Path) -> None:
    task = Task.from_folder(folder, "user-spends")
    with pytest.raises(ConfigError, match=r"customer_id.* is null in 1 rows, or has no"):
        _shipped(task, tmp_path, customer_id=[7.0, float(2**53)], spends=[1, 2])


def test_an_empty_split_is_told_with_its_times(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = replace(Task.from_folder(folder, "user-spends"), timedelta="4 days")
    none = "SELECT timestamp, 1 AS customer_id, 1 AS spends FROM timestamps WHERE false"
    assert len(replace(task, sql=none).split("val")) == 0
    (line,) = caplog.messages
    assert line.startswith("task 'user-spends', split 'val' has no rows (seeds at 2020-05-30T00:")
    column = replace(Task.from_folder(folder, "transaction-price"), test_timestamp="2099-01-01")
    assert len(column.split("test")) == 0
    assert caplog.messages[1].startswith(
        "task 'transaction-price', split 'test' has no rows (where"
    )


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sql": "SELECT 1 AS x"}, 'Referenced column "customer_id" not found'),
        ({"sql": "SELEC"}, "task 'user-spends', split 'train' cannot be read"),
        ({"sql": None}, "neither sql nor labels"),
        ({"target": "spend"}, '"spend" not found'),
        ({"timedelta": "1 month"}, "timedelta must be whole seconds"),
        ({"timedelta": None}, "timedelta must be whole seconds"),
        ({"timedelta": "60 days"}, "have 2 times of 5184000 s, and training takes 3"),
        ({"timedelta": "90 days"}, "longer than the time from validation to test"),
        ({"entity": ("users", "customer_id")}, "names table 'users', which the database has not"),
    ],
)
def test_what_cannot_work(dataset: DistDataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(dataset.task("user-spends"), **change).split("train")


def test_who_has_no_database_and_which_names_there_are(
    dataset: DistDataset, folder: Path, tmp_path: Path
) -> None:
    task = Task.read(folder / "tasks" / "user-spends")
    with pytest.raises(UsageError, match="has no database"):
        task.split("train")
    with pytest.raises(ConfigError, match="a split is one of"):
        dataset.task("user-spends").split("all")
    with pytest.raises(ConfigError, match="cannot be read"):
        dataset.task("user-leaves")
    with pytest.raises(WrongTypeError, match="a task is a name, a directory, or a Task, got 5"):
        dataset.task(5)
    with pytest.raises(ConfigError, match=r"these ids are no 'transactions'.*open it with"):
        dataset.task("transaction-price").split("test")
    known = _opened(folder, upto="all").task("transaction-price").split("test", mask=False)
    assert len(known) > 0
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump({"kind": "other", "entity_table": "x"}))
    with pytest.raises(ConfigError, match="must have entity_table, and kind as one of"):
        Task.read(tmp_path)
    split = dataset.task("user-spends").split("train")
    with pytest.raises(ConfigError, match="has times of its own"):
        DistNeighborLoader(dataset, FANOUT, split, input_time=split.time)
