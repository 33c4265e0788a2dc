"""Why a connection ended travels as a value that both sides know."""

import pytest

from gigl_loader.errors import ProtocolError
from gigl_loader.transport.codec import decode, encode, read_header
from gigl_loader.transport.ends import End
from gigl_loader.transport.handshake import Goodbye


@pytest.mark.parametrize("end", End)
def test_each_end_arrives_as_itself(end: End) -> None:
    _, body, _ = read_header(encode(Goodbye(end, "words"))[0])
    assert decode(body, [], Goodbye) == Goodbye(end, "words")
    assert End(str(end)) is end  # as errors carry it


def test_words_never_stand_for_an_end() -> None:
    _, body, _ = read_header(encode({"end": "it was shut down", "words": ""})[0])
    with pytest.raises(ProtocolError):
        decode(body, [], Goodbye)


def test_refusals_are_told_from_other_ends() -> None:
    refused = {end for end in End if end.name.startswith("REFUSED_")}
    assert refused == {end for end in End if end.value.startswith("refused: ")}
    assert len({end.value for end in End}) == len(End)
