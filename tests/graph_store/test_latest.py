"""What a server remembers for a while."""

from gigl_loader.graph_store.server.latest import Latest


def test_what_was_added_first_is_forgotten() -> None:
    latest = Latest[str, int](2)
    for value, key in enumerate("abca"):
        latest[key] = value
    assert [*latest.items()] == [("c", 2), ("a", 3)]
    latest["c"] = 4
    assert [*latest.items()] == [("c", 4), ("a", 3)], "one that is there keeps its place"
