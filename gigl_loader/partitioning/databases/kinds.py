"""What the columns of a table are: kinds, categories and statistics, over all of its rows.

The rules are PyTorch Frame's (``infer_series_stype``), in SQL; types that say more than a rule come
first. Statistics and categories are those of the rows before a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.source import family_of, one_row, seconds_sql
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name
from gigl_loader.partitioning.tables.frame_rows import PADDED, stamp_parts

_RAREST = 4
"""A column is of categories if the rarest has more rows than this, as in PyTorch Frame."""
_SURELY_RARE = 0.3
"""Distinct values per row above which some value has fewer than 5 rows, with room for the error of
the estimate: exact from 0.2 on."""
_LONGEST = 256
"""Values in a cell of a column of lists or several categories."""
_MOST_SECONDS = 970 * 10**9
"""The year 32,708, and -28,769 before 1970; years are kept in 16 bits."""
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_MANY_VALUES = 2**25
"""More numbers are sorted on disk for their quantiles, fewer are kept in memory."""
_SCALARS, _LISTS = ("bool", "int", "float", "decimal"), ("float[]", "int[]", "decimal[]")
_ALLOWED = {
    "numerical": (*_SCALARS, "span"),
    "categorical": (*_SCALARS, "text", "enum"),
    "timestamp": ("time", "text", "int"),
    "embedding": _LISTS,
    "sequence_numerical": _LISTS,
    "multicategorical": ("text", "text[]", "int[]"),
    "text_embedded": ("text", "enum"),
}
"""Families of types that a kind can be made of."""
_OWN_KINDS = {
    **{"bool": "categorical", "enum": "categorical", "decimal": "numerical", "span": "numerical"},
    **{"time": "timestamp", "text[]": "multicategorical", "int[]": "sequence_numerical"},
    "decimal[]": "sequence_numerical",
}
"""Kinds of families that no value changes."""
_BLANK = "E' \\t\\n\\r\\f\\v'"


@dataclass
class Column:
    """A column that is a feature, or may be."""

    name: str
    type: str
    """DuckDB's."""
    kind: str | None = None
    """None: it is left out."""
    width: int = 1
    """Numbers in the longest cell; of a text, those of its embedding."""
    separator: str | None = None
    """Between the categories in a text."""
    stats: dict[str, Any] = field(default_factory=dict)
    """By the name of PyTorch Frame's ``StatType``."""

    @property
    def family(self) -> str | None:
        """See `family_of`."""
        return family_of(self.type)

    @property
    def sql(self) -> str:
        """SQL of the value; null where it is missing."""
        name = quoted_name(self.name)
        if self.kind == "timestamp":
            return seconds_sql(name, self.type)
        forms = {
            "span": f"epoch({name})",
            "decimal": f"CAST({name} AS DOUBLE)",
            "float": f"CASE WHEN NOT isnan({name}) THEN {name} END",
        }
        return forms.get(self.family or "", name)

    @property
    def category_sql(self) -> str:
        """SQL of the category, as text; 1.0 is the category 1."""
        whole = f"CASE WHEN {self.sql} = trunc({self.sql}) THEN TRY_CAST({self.sql} AS BIGINT) END"
        text = f"CAST({self.sql} AS VARCHAR)"
        return f"coalesce(CAST({whole} AS VARCHAR), {text})" if self.family == "float" else text

    @property
    def parts_sql(self) -> str:
        """SQL of the categories of a cell, each once, as a list of texts; null: it is missing."""
        name = quoted_name(self.name)
        if self.separator is None:
            return f"list_distinct(CAST({name} AS VARCHAR[]))"
        split = f"string_split({name}, {quoted(self.separator)})"
        parts = f"list_distinct(list_transform({split}, lambda x: trim(x, {_BLANK})))"
        return f"CASE WHEN trim({name}, {_BLANK}) = '' THEN [] ELSE {parts} END"


class Columns:
    """The features of a table, of which a connection has a view.

    Args:
        connection: To DuckDB.
        table: Name of the view.
        types: DuckDB's type of each column that is no key.
        kinds: Kinds that the caller chose; None: the column is left out.
        before: SQL that is true for rows that count in statistics and categories.
        embeds: Whether texts can be embedded.

    Raises:
        ConfigError: A column cannot be of the chosen kind, or be stored; the message names it.
    """

    def __init__(
        self,
        connection: Any,
        table: str,
        types: Mapping[str, str],
        kinds: Mapping[str, str | None],
        before: str,
        *,
        embeds: bool,
    ) -> None:
        self._connection, self._table, self._view = connection, table, quoted_name(table)
        self.left_out: dict[str, list[str]] = {}
        """Names of columns that are no feature, by the reason."""
        self.all: list[Column] = []
        every = [Column(name, kind) for name, kind in types.items()]
        for column in every:
            column.kind = kinds.get(column.name)
            if column.kind is not None and column.family not in _ALLOWED.get(column.kind, ()):
                self._refuse(column, f"cannot be {column.kind!r} (kinds: {', '.join(_ALLOWED)})")
        for column, facts in zip(every, self._facts(every), strict=True):
            reason = "as chosen"
            if column.name not in kinds:
                column.kind, reason = self._kind(column, facts), "no value, or of no kind"
            if column.kind == "text_embedded" and not embeds:
                column.kind, reason = None, "text, and embed= is not given"
            if column.kind is None:
                self.left_out.setdefault(reason, []).append(column.name)
                continue
            self._check(column, facts)
            self._add_statistics(column, f"(SELECT * FROM {self._view} WHERE {before})")
            self.all.append(column)

    def _one(self, query: str) -> Any:
        return one_row(self._connection, query)

    def _refuse(self, column: Column, what: str) -> NoReturn:
        raise ConfigError(
            f"table {self._table!r}: column {column.name!r} ({column.type}) {what}; choose a kind "
            f"with kinds={{{self._table!r}: {{{column.name!r}: ...}}}}, or None to leave it out"
        )

    def _facts(self, columns: list[Column]) -> list[dict[str, Any]]:
        """Return what one pass over the table says of each column."""
        select, names = ["count(*)"], list[list[str]]()
        for column in columns:
            value, family = column.sql, column.family or ""
            of_column = {"count": f"count({value})"}
            if family == "float":
                of_column["whole"] = f"bool_and({value} = trunc({value}) AND isfinite({value}))"
            name = quoted_name(column.name)
            if family == "time":  # cheaper than the latest of the seconds
                for end, of_end in (("first", "min"), ("last", "max")):
                    found_end = f"{of_end}({name}) FILTER (isfinite({name}))"
                    of_column[end] = seconds_sql(found_end, column.type)
            elif family == "text":  # if all are times, so are these two
                ends = (seconds_sql(f"{end}({name})", column.type) for end in ("min", "max"))
                of_column["may_be_times"] = " + ".join(ends)
            elif column.kind == "timestamp":
                of_column |= {"first": f"min({name})", "last": f"max({name})"}
            if family in _LISTS:
                wrong = "x IS NULL" + (" OR NOT isfinite(x)" if family == "float[]" else "")
                wrong = f"list_bool_or(list_transform({value}, lambda x: {wrong}))"
                of_column |= {"most": f"max(len({value}))", "least": f"min(len({value}))"}
                of_column["wrong"] = f"coalesce(bool_or({wrong}), false)"
            names.append(list(of_column))
            select += of_column.values()
        rows, *found = self._one(f"SELECT {', '.join(select)} FROM {self._view}")
        values = iter(found)
        facts: list[dict[str, Any]] = [
            {name: next(values) for name in several} | {"rows": rows} for several in names
        ]
        for column, fact in zip(columns, facts, strict=True):
            if column.family == "text":
                seconds = seconds_sql(quoted_name(column.name), column.type)
                query = f"SELECT count({seconds}), max({seconds}) FROM {self._view}"
                known = column.kind == "timestamp" or fact["may_be_times"] is not None
                count, latest = self._one(query) if known else (0, None)
                fact.update(times=count, last=latest)
        return facts

    def _kind(self, column: Column, facts: dict[str, Any]) -> str | None:
        """Return the kind by the rules: see the page "Databases"."""
        family, count = column.family, facts["count"]
        if not count or family is None:
            return None
        if family in _OWN_KINDS:
            return _OWN_KINDS[family]
        if family == "float[]":
            same = facts["most"] == facts["least"] and count == facts["rows"]
            return "embedding" if same and not facts["wrong"] else "sequence_numerical"
        if family == "float" and (count == facts["rows"] or not facts["whole"]):
            return "numerical"
        if family == "text" and facts["times"] == count:
            return "timestamp"
        if self._rarest(column.sql, self._view) > _RAREST:
            return "categorical"
        if family != "text":
            return "numerical"
        column.separator = max("|,", key=lambda separator: self._rarest_part(column, separator))
        several = self._rarest_part(column, column.separator) > _RAREST
        return "multicategorical" if several else "text_embedded"

    def _rarest(self, value: str, rows: str) -> int:
        """Return the rows of the rarest value, or 0 if they are surely too few."""
        # first by an estimate, which takes no memory: most texts are no categories
        estimate = f"SELECT count({value}), approx_count_distinct({value}) FROM {rows}"
        count, distinct = self._one(estimate)
        if not count or distinct > _SURELY_RARE * count:
            return 0
        counts = f"SELECT count(*) AS c FROM {rows} WHERE {value} IS NOT NULL GROUP BY {value}"
        return int(self._one(f"SELECT min(c) FROM ({counts})")[0])

    def _rarest_part(self, column: Column, separator: str) -> int:
        split = Column(column.name, column.type, separator=separator).parts_sql
        return self._rarest("p", f"(SELECT unnest({split}) AS p FROM {self._view})")

    def _check(self, column: Column, facts: dict[str, Any]) -> None:
        """Check the values of a column for its kind; find the longest cell."""
        if column.kind == "timestamp":
            if column.family == "text" and facts["times"] < facts["count"]:
                self._refuse(column, "has texts that are no times such as 2020-01-31 12:00:00")
            if max(facts["last"] or 0, -(facts.get("first") or 0)) > _MOST_SECONDS:
                self._refuse(column, "has times after the year 32,707, or before -28,768")
        if column.kind == "embedding":
            if facts["count"] < facts["rows"] or facts["wrong"] or facts["most"] != facts["least"]:
                self._refuse(column, "must have lists of one length without a missing value")
            column.width = facts["most"] or 0
        if column.kind == "multicategorical" and column.family == "text" and not column.separator:
            column.separator = max("|,", key=lambda separator: self._rarest_part(column, separator))
        if column.kind in PADDED:
            cell = column.sql if column.kind == "sequence_numerical" else column.parts_sql
            column.width = max(1, self._one(f"SELECT max(len({cell})) FROM {self._view}")[0] or 0)
            if column.width > _LONGEST:
                self._refuse(column, f"has a cell of {column.width} values, more than {_LONGEST}")

    # --- statistics -------------------------------------------------------------------------------

    def _add_statistics(self, column: Column, rows: str) -> None:
        """Add PyTorch Frame's statistics to a column; see its ``StatType``."""
        if column.kind == "numerical":
            column.stats = self._numbers(f"CAST({column.sql} AS DOUBLE)", rows)
        elif column.kind == "sequence_numerical":
            flat = f"(SELECT unnest(CAST({column.sql} AS DOUBLE[])) AS v FROM {rows})"
            column.stats = self._numbers("v", flat)
        elif column.kind == "timestamp":
            column.stats = self._times(column, rows)
        elif column.kind in ("categorical", "multicategorical"):
            column.stats = self._categories(column, rows)
        else:
            column.stats = {"EMB_DIM": column.width}

    def _numbers(self, value: str, rows: str) -> dict[str, Any]:
        finite = f"(SELECT {value} AS v FROM {rows} WHERE isfinite({value}))"
        select, quantiles = "count(*), avg(v), stddev_pop(v)", [None] * len(_QUANTILES)
        few = self._one(f"SELECT count(*) FROM {self._view}")[0] <= _MANY_VALUES
        in_memory = f"quantile_cont(v, {list(_QUANTILES)})" if few else "NULL"
        count, mean, std, found = self._one(f"SELECT {select}, {in_memory} FROM {finite}")
        if count and not few:
            places = [(int(q * (count - 1)), q * (count - 1) % 1) for q in _QUANTILES]
            ends = {i + more for i, _ in places for more in (0, 1)}
            numbered = f"SELECT v, row_number() OVER (ORDER BY v) - 1 AS i FROM {finite}"
            query = f"SELECT i, v FROM ({numbered}) WHERE i IN ({', '.join(map(str, ends))})"
            at = dict(self._connection.execute(query).fetchall())
            found = [at[i] + (at.get(i + 1, at[i]) - at[i]) * part for i, part in places]
        return {"MEAN": mean, "STD": std, "QUANTILES": found or quantiles}

    def _categories(self, column: Column, rows: str) -> dict[str, Any]:
        """Count categories: descending, ties by first appearance."""
        value = column.category_sql
        if column.kind == "multicategorical":
            value = column.parts_sql
        # without the other columns, which may have the name of the number
        source = f"(SELECT {value} AS v, row_number() OVER () AS i FROM {rows})"
        if column.kind == "multicategorical":
            source = f"(SELECT unnest(v) AS v, i FROM {source})"
        counts = f"SELECT v, count(*) AS c, min(i) AS f FROM {source} GROUP BY v"
        query = f"SELECT v, c FROM ({counts}) WHERE v IS NOT NULL ORDER BY c DESC, f, v"
        found = self._connection.execute(query).fetchall()
        name = "COUNT" if column.kind == "categorical" else "MULTI_COUNT"
        return {name: [[value for value, _ in found], [count for _, count in found]]}

    def _times(self, column: Column, rows: str) -> dict[str, Any]:
        # Of the stored values where their order is that of the times: seconds cost more. The
        # median is element n // 2 of the sorted: the engine's, from the other end.
        name, are_times = quoted_name(column.name), column.family == "time"
        values = f"SELECT {name} AS v FROM {rows} WHERE isfinite({name})"
        if not are_times:
            values = f"SELECT {column.sql} AS v FROM {rows}"
        median = "percentile_disc(0.5) WITHIN GROUP (ORDER BY v DESC)"
        ends = f"SELECT max(v) AS a, min(v) AS b, {median} AS c FROM ({values})"
        seconds = [seconds_sql(x, column.type) if are_times else x for x in "abc"]
        newest, oldest, middle = (
            [-1] * 7 if v is None else stamp_parts(np.array([v]))[0].tolist()
            for v in self._one(f"SELECT {', '.join(seconds)} FROM ({ends})")
        )
        times = {"NEWEST_TIME": newest, "OLDEST_TIME": oldest, "MEDIAN_TIME": middle}
        return {"YEAR_RANGE": [oldest[0], newest[0]], **times}


def stats_of(column: Column) -> dict[str, Any]:
    """Return the statistics of a column, with categories as values of its own type."""
    if "COUNT" not in column.stats:
        return column.stats
    makes: dict[str | None, Any] = {"int": int, "float": float, "bool": lambda text: text == "true"}
    values, counts = column.stats["COUNT"]
    return {"COUNT": [list(map(makes.get(column.family, str), values)), counts]}
