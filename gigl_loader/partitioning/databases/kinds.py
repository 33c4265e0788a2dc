"""What the columns of a table are: kinds, categories and statistics, over all of its rows.

The rules are PyTorch Frame's (``infer_series_stype``), in SQL; types that say more than a rule come
first. Statistics and categories are those of the rows before a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from gigl_loader.dataset.partition.frames import MOST_VALUES, PADDED, stamp_parts
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.source import family_of, one_row, seconds_sql
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name

CONSTANT = "__const__"
"""The feature of a table that has none, as in RelBench: the number 1."""
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
    categories: list[str] = field(default_factory=list)
    """As texts, in the order of their numbers."""

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
        self._connection, self._table = connection, table
        self.view = f"(SELECT *, 1.0::FLOAT AS {CONSTANT} FROM {quoted_name(table)})"
        """SQL of the rows."""
        self.left_out: dict[str, list[str]] = {}
        """Names of columns that are no feature, by the reason."""
        self.all: list[Column] = []
        for name, type_of in types.items():
            column, reason = Column(name, type_of, kinds.get(name)), "as chosen"
            if column.kind is not None and column.family not in _ALLOWED.get(column.kind, ()):
                self._refuse(column, f"cannot be {column.kind!r} (kinds: {', '.join(_ALLOWED)})")
            facts = self._facts(column)
            if name not in kinds:
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
            self._add_statistics(column, f"(SELECT * FROM {self.view} WHERE {before})")

    def _one(self, query: str) -> Any:
        return one_row(self._connection, query)

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
        if family in _LISTS:
            wrong = "x IS NULL" + (" OR NOT isfinite(x)" if family == "float[]" else "")
            wrong = f"list_bool_or(list_transform({value}, lambda x: {wrong}))"
            forms["wrong"] = f"coalesce(bool_or({wrong}), false)"
            forms |= {"most": f"max(len({value}))", "least": f"min(len({value}))"}
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
            return "embedding" if _are_vectors(facts) else "sequence_numerical"
        if family == "float" and (count == facts["rows"] or not facts["whole"]):
            return "numerical"
        if family == "text" and self._are_times(column):
            return "timestamp"
        if self._rarest(column.sql, self.view) > _RAREST:
            return "categorical"
        if family != "text":
            return "numerical"
        column.separator = max("|,", key=lambda separator: self._rarest_part(column, separator))
        several = self._rarest_part(column, column.separator) > _RAREST
        return "multicategorical" if several else "text_embedded"

    def _are_times(self, column: Column) -> bool:
        """Return whether all texts are times."""
        name = quoted_name(column.name)
        # if all are, so are the first and the last, which take less
        ends = (seconds_sql(f"{end}({name})", column.type) for end in ("min", "max"))
        if self._one(f"SELECT {' + '.join(ends)} FROM {self.view}")[0] is None:
            return False
        seconds = seconds_sql(name, column.type)
        return bool(self._one(f"SELECT count({name}) = count({seconds}) FROM {self.view}")[0])

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
        return self._rarest("p", f"(SELECT unnest({split}) AS p FROM {self.view})")

    def _check(self, column: Column, facts: dict[str, Any]) -> None:
        """Check the values of a column for its kind; find the longest cell."""
        if column.kind == "timestamp":
            of = f"count({column.sql}), min({column.sql}), max({column.sql})"
            query = f"SELECT count({quoted_name(column.name)}), {of} FROM {self.view}"
            texts, times, first, last = self._one(query)
            if column.family == "text" and times < texts:
                self._refuse(column, "has texts that are no times such as 2020-01-31 12:00:00")
            if max(last or 0, -(first or 0)) > _MOST_SECONDS:
                self._refuse(column, "has times after the year 32,707, or before -28,768")
        if column.kind == "embedding":
            if not _are_vectors(facts):
                self._refuse(column, "must have lists of one length without a missing value")
            column.width = facts["most"]
        if column.kind == "multicategorical" and column.family == "text" and not column.separator:
            column.separator = max("|,", key=lambda separator: self._rarest_part(column, separator))
        if column.kind in PADDED:
            cell = column.sql if column.kind == "sequence_numerical" else column.parts_sql
            column.width = max(1, self._one(f"SELECT max(len({cell})) FROM {self.view}")[0] or 0)
            if column.width > MOST_VALUES:
                self._refuse(
                    column, f"has a cell of {column.width} values, more than {MOST_VALUES}"
                )

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
        """Count categories: descending, ties by first appearance."""
        is_one = column.kind == "categorical"
        value = column.category_sql if is_one else column.parts_sql
        # without the other columns, which may have the name of the number
        source = f"(SELECT {value} AS v, {column.sql} AS x, row_number() OVER () AS i FROM {rows})"
        if not is_one:
            source = f"(SELECT unnest(v) AS v, NULL AS x, i FROM {source})"
        counts = f"SELECT v, any_value(x) AS x, count(*) AS c, min(i) AS f FROM {source} GROUP BY v"
        query = f"SELECT v, c, x FROM ({counts}) WHERE v IS NOT NULL ORDER BY c DESC, f, v"
        found = self._connection.execute(query).fetchall()
        column.categories = [value for value, *_ in found]
        values = [own for *_, own in found] if is_one else column.categories
        return {"COUNT" if is_one else "MULTI_COUNT": [values, [count for _, count, _ in found]]}

    def _times(self, column: Column, rows: str) -> dict[str, Any]:
        # the median is element n // 2 of the sorted: the engine's, from the other end
        median = "percentile_disc(0.5) WITHIN GROUP (ORDER BY v DESC)"
        values = f"(SELECT {column.sql} AS v FROM {rows})"
        found = self._one(f"SELECT max(v), min(v), {median} FROM {values}")
        newest, oldest, middle = (
            [-1] * 7 if v is None else stamp_parts(np.array([v]))[0].tolist() for v in found
        )
        times = {"NEWEST_TIME": newest, "OLDEST_TIME": oldest, "MEDIAN_TIME": middle}
        return {"YEAR_RANGE": [oldest[0], newest[0]], **times}


def _are_vectors(facts: Mapping[str, Any]) -> bool:
    """Return whether all lists have one length, and nothing is missing."""
    same = facts["most"] == facts["least"] and facts["count"] == facts["rows"]
    return bool(facts["most"] and same and not facts["wrong"])
