"""What the columns of a table are: kinds, categories and statistics, over all of its rows.

The rules are PyTorch Frame's (``infer_series_stype``), in SQL; types that say more than a rule come
first. Statistics and categories are those of the rows before a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from gigl_loader.dataset.partition.frames import CONSTANT, MOST_VALUES, PADDED
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.source import family_of, one_row, seconds_sql, ticks_sql
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name

Types = Mapping[str, str]
Kinds = Mapping[str, str | None]
_RAREST = 4
"""A column is of categories if the rarest has more rows than this, as in PyTorch Frame."""
_SURELY_RARE = 0.3
"""Distinct values per row above which some value has fewer than 5 rows, with room for the error of
the estimate: exact from 0.2 on."""
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
    cell: str | None = None
    """SQL of the embedding of a text; None: of others."""

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
            **dict.fromkeys(("text", "enum"), f"CAST({name} AS VARCHAR)"),
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

    @property
    def enum(self) -> str:
        """The engine's enum of the categories, as texts, in the order of their numbers."""
        return quoted_name(f"gigl_loader categories of {self.name}")


def time_parts(seconds: str) -> str:
    """Return SQL for year, month - 1, day - 1, weekday, hour, minute, second of SQL; or all -1."""
    units = {"year": 0, "month": 1, "day": 1, "isodow": 1, "hour": 0, "minute": 0, "second": 0}
    of = f"make_timestamp({seconds} * 1000000)"
    parts = (f"{unit}({of}) - {first}" for unit, first in units.items())
    return ", ".join(f"coalesce({part}, -1)::SMALLINT" for part in parts)


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
        self, connection: Any, table: str, types: Types, kinds: Kinds, before: str, *, embeds: bool
    ) -> None:
        self._connection, self._table = connection, table
        self._one = partial(one_row, connection)
        self.view = f"(SELECT *, 1.0::FLOAT AS {CONSTANT} FROM {quoted_name(table)})"
        """SQL of the rows."""
        self.left_out: dict[str, list[str]] = {}
        """Names of columns that are no feature, by the reason."""
        self.all: list[Column] = []
        for name, type_of in types.items():
            column, reason = Column(name, type_of), "as chosen"
            facts = self._facts(column)
            if name in kinds:
                column.kind = kinds[name]
            else:
                column.kind, reason = self._kind(column, facts), "no value, or of no kind"
            if column.kind == "text_embedded" and not embeds:
                column.kind, reason = None, "text, and embed= is not given"
            if column.kind is None:
                self.left_out.setdefault(reason, []).append(name)
                continue
            self._check(column, facts)
            self.all.append(column)
        self.all = self.all or [Column(CONSTANT, "FLOAT", "numerical")]
        for column in self.all:
            column.stats = self._statistics(column, f"(SELECT * FROM {self.view} WHERE {before})")

    def _refuse(self, column: Column, what: str) -> NoReturn:
        raise ConfigError(
            f"table {self._table!r}: column {column.name!r} ({column.type}) {what}; choose a kind "
            f"with kinds={{{self._table!r}: {{{column.name!r}: ...}}}}, or None to leave it out"
        )

    def _facts(self, column: Column) -> dict[str, Any]:
        """Return what one pass over a column says of it."""
        value, family = column.sql, column.family or ""
        forms = {"rows": "count(*)", "count": f"count({value})"}
        if family == "float":
            forms["whole"] = f"bool_and({value} = trunc({value}) AND isfinite({value}))"
        if family == "text":
            forms["times"] = f"count({ticks_sql(value, column.type)[0]})"
        if family in _LISTS:
            wrong = "x IS NULL" + (" OR NOT isfinite(x)" if family == "float[]" else "")
            wrong = f"coalesce(list_bool_or(list_transform({value}, lambda x: {wrong})), false)"
            alike = f"count({value}) = count(*) AND min(len({value})) = max(len({value}))"
            forms["width"] = (
                f"CASE WHEN {alike} AND NOT bool_or({wrong}) THEN max(len({value})) END"
            )
        found = self._one(f"SELECT {', '.join(forms.values())} FROM {self.view}")
        return dict(zip(forms, found, strict=True))

    def _kind(self, column: Column, facts: dict[str, Any]) -> str | None:
        """Return the kind by the rules: see the page "Databases"."""
        family, count = column.family, facts["count"]
        if not count or family is None:
            return None
        if family in _OWN_KINDS:
            return _OWN_KINDS[family]
        if family == "float[]":
            return "embedding" if facts["width"] else "sequence_numerical"
        if family == "float" and (count == facts["rows"] or not facts["whole"]):
            return "numerical"
        if family == "text" and facts["times"] == count:
            return "timestamp"
        if self._rarest(column.sql, self.view) > _RAREST:
            return "categorical"
        if family != "text":
            return "numerical"
        return "multicategorical" if self._separate(column) > _RAREST else "text_embedded"

    def _rarest(self, value: str, rows: str) -> int:
        """Return the rows of the rarest value, or 0 if they are surely too few."""
        # first by an estimate, which takes no memory: most texts are no categories
        estimate = f"SELECT count({value}), approx_count_distinct({value}) FROM {rows}"
        count, distinct = self._one(estimate)
        if not count or distinct > _SURELY_RARE * count:
            return 0
        counts = f"SELECT count(*) AS c FROM {rows} WHERE {value} IS NOT NULL GROUP BY {value}"
        return int(self._one(f"SELECT min(c) FROM ({counts})")[0])

    def _separate(self, column: Column) -> int:
        """Find the separator in a column of texts; return the rows of the rarest part."""
        rarest = {}
        for column.separator in "|,":
            parts = f"(SELECT unnest({column.parts_sql}) AS p FROM {self.view})"
            rarest[column.separator] = self._rarest("p", parts)
        column.separator = max(rarest, key=lambda separator: rarest[separator])
        return rarest[column.separator]

    def _check(self, column: Column, facts: dict[str, Any]) -> None:
        """Check the values of a column for its kind; find the longest cell."""
        if column.family not in _ALLOWED.get(str(column.kind), ()):
            self._refuse(column, f"cannot be {column.kind!r} (kinds: {', '.join(_ALLOWED)})")
        if column.kind == "timestamp":
            first, last = self._one(f"SELECT min({column.sql}), max({column.sql}) FROM {self.view}")
            if facts.get("times", facts["count"]) < facts["count"]:
                self._refuse(column, "has texts that are no times such as 2020-01-31 12:00:00")
            if max(last or 0, -(first or 0)) > _MOST_SECONDS:
                self._refuse(column, "has times after the year 32,707, or before -28,768")
        if column.kind == "embedding":
            if not facts["width"]:
                self._refuse(column, "must have lists of one length without a missing value")
            column.width = facts["width"]
        if column.kind == "multicategorical" and column.family == "text" and not column.separator:
            self._separate(column)
        if column.kind in PADDED:
            cell = column.sql if column.kind == "sequence_numerical" else column.parts_sql
            column.width = max(1, self._one(f"SELECT max(len({cell})) FROM {self.view}")[0] or 0)
            if column.width > MOST_VALUES:
                self._refuse(
                    column, f"has a cell of {column.width} values, more than {MOST_VALUES}"
                )

    # --- statistics -------------------------------------------------------------------------------

    def _statistics(self, column: Column, rows: str) -> dict[str, Any]:
        """Return PyTorch Frame's statistics of a column; see its ``StatType``."""
        if column.kind == "timestamp":
            return self._times(column, rows)
        if column.kind in ("categorical", "multicategorical"):
            return self._categories(column, rows)
        if column.kind in ("numerical", "sequence_numerical"):
            return self._numbers(column, rows)
        return {"EMB_DIM": column.width}

    def _numbers(self, column: Column, rows: str) -> dict[str, Any]:
        value = f"CAST({column.sql} AS DOUBLE)"
        if column.kind == "sequence_numerical":
            value = f"unnest(CAST({column.sql} AS DOUBLE[]))"
        finite = f"(FROM (SELECT {value} AS v FROM {rows}) WHERE isfinite(v))"
        count, mean, std = self._one(f"SELECT count(*), avg(v), stddev_pop(v) FROM {finite}")
        if count <= _MANY_VALUES:
            found = self._one(f"SELECT quantile_cont(v, {list(_QUANTILES)}) FROM {finite}")[0]
        else:  # each is between the two next to its place
            places = [q * (count - 1) for q in _QUANTILES]
            parts = ", ".join(f"sum(v * greatest(0, 1 - abs(i - {at!r})))" for at in places)
            numbered = f"SELECT v, row_number() OVER (ORDER BY v) - 1 AS i FROM {finite}"
            found = list(self._one(f"SELECT {parts} FROM ({numbered})"))
        return {"MEAN": mean, "STD": std, "QUANTILES": found or [None] * len(_QUANTILES)}

    def _categories(self, column: Column, rows: str) -> dict[str, Any]:
        """Count categories: descending, ties by first appearance; make the engine's enum of them.

        It finds a text by a hash table, and rows stay in order, as in a join they need not.
        """
        is_one = column.kind == "categorical"
        value = column.category_sql if is_one else column.parts_sql
        # without the other columns, which may have the name of the number
        source = f"(SELECT {value} AS v, {column.sql} AS x, row_number() OVER () AS i FROM {rows})"
        if not is_one:
            source = f"(SELECT unnest(v) AS v, i FROM {source})"
        own = "any_value(x)" if is_one else "v"
        counts = f"SELECT v, {own} AS x, count(*) AS c, min(i) AS f FROM {source} GROUP BY v"
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {column.enum} AS SELECT v, x, c FROM ({counts}) WHERE v "
            f"IS NOT NULL ORDER BY c DESC, f, v; CREATE OR REPLACE TEMP TYPE {column.enum} AS ENUM "
            f"(SELECT v FROM {column.enum})"
        )
        found = self._connection.execute(f"SELECT x, c FROM {column.enum}").fetchall()
        values, numbers = [value for value, _ in found], [count for _, count in found]
        return {"COUNT" if is_one else "MULTI_COUNT": [values, numbers]}

    def _times(self, column: Column, rows: str) -> dict[str, Any]:
        # the median is element n // 2 of the sorted: the engine's, from the other end
        median = "percentile_disc(0.5) WITHIN GROUP (ORDER BY v DESC)"
        parts = ", ".join(f"[{time_parts(of)}]" for of in ("max(v)", "min(v)", median))
        found = self._one(f"SELECT {parts} FROM (SELECT {column.sql} AS v FROM {rows})")
        times = dict(zip(("NEWEST_TIME", "OLDEST_TIME", "MEDIAN_TIME"), found, strict=True))
        return {"YEAR_RANGE": [found[1][0], found[0][0]], **times}
