"""The schema of a database as a picture: a box for each table, an arrow for each foreign key."""

from collections.abc import Mapping
from html import escape

from gigl_loader.partitioning.databases.source import Database

_BOX = "fill='#eef3f8' stroke='#4c78a8'"
_WIDE, _HIGH, _ACROSS, _DOWN = 190, 54, 280, 84


def draw_schema(database: Database, rows: Mapping[str, int]) -> str:
    """Return SVG of tables with their rows; a table is to the right of those that it refers to."""
    levels = dict.fromkeys(database.tables, 0)
    for _ in levels:  # a circle of keys ends, too
        for table, keys in database.tables.items():
            above = [levels[parent] + 1 for parent in keys.fkeys.values() if parent != table]
            levels[table] = min(max([0, *above]), len(levels) - 1)
    taken: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for table, level in levels.items():
        taken[level] = taken.get(level, -1) + 1
        places[table] = 20 + level * _ACROSS, 20 + taken[level] * _DOWN
    parts = []
    for table, keys in database.tables.items():
        for number, (column, parent) in enumerate(keys.fkeys.items()):
            (x, y), (to_x, to_y) = places[table], places[parent]
            end = to_x + _WIDE if to_x < x else to_x
            y, to_y = y + 18 + 12 * number, to_y + _HIGH // 2
            middle = (x + end) // 2 if end != x else x - 60
            path = f"M{x} {y} C{middle} {y} {middle} {to_y} {end} {to_y}"
            parts.append(f"<path d='{path}' fill='none' stroke='#f58518' marker-end='url(#end)'/>")
            at = f"x='{(x + end) // 2}' y='{(y + to_y) // 2 - 4}'"
            parts.append(f"<text {at} text-anchor='middle' fill='#b35900'>{escape(column)}</text>")
    for table, (x, y) in places.items():
        time = database.tables[table].time_col
        below = f"{rows[table]:,} rows" + (f", by {time}" if time else "")
        parts.append(f"<rect x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' rx='6' {_BOX}/>")
        parts.append(f"<text x='{x + 10}' y='{y + 22}' font-weight='bold'>{escape(table)}</text>")
        parts.append(f"<text x='{x + 10}' y='{y + 42}' fill='#555'>{escape(below)}</text>")
    wide = max(x for x, _ in places.values()) + _WIDE + 20
    high = max(y for _, y in places.values()) + _HIGH + 20
    marker = (
        "<defs><marker id='end' markerWidth='8' markerHeight='8' refX='7' refY='4' orient='auto'>"
        "<path d='M0 0 L8 4 L0 8 z' fill='#f58518'/></marker></defs>"
    )
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {wide} {high}' width='{wide}'"
    return f"{head} font-family='sans-serif' font-size='13'>{marker}{''.join(parts)}</svg>\n"
