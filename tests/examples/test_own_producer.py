"""The example with a producer of its own, as its page starts it."""

import pytest

from tests.examples._run import number_after, torchrun_example

pytestmark = pytest.mark.multiprocess


def test_a_producer_of_ones_own_trains_on_two_ranks() -> None:
    printed = torchrun_example("own_producer.py", ranks=2)
    assert number_after("accuracy ", printed) > 0.85, "features alone say 0.61"
