"""Kinds of messages are told apart by their names."""

from gigl_loader.workers import messages


def test_no_two_kinds_have_one_name() -> None:
    names = {name: value for name, value in vars(messages).items() if name.isupper()}
    assert all(isinstance(value, str) and value for value in names.values())
    assert len(set(names.values())) == len(names)
    told = messages.__doc__ or ""
    assert [name for name in names if name not in told] == [], "who sends it to whom is not said"
