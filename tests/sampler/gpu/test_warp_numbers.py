"""The numbers of Warp's draws, one by one: a draw would show only their order."""

import numpy as np
import torch
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.gpu.torch_numbers import exponentials, row_keys, signed, units
from gigl_loader.sampler.gpu.warp_programs import exponential_of, row_key_of, unit_of
from tests.support.draws import examples

wp.set_module_options({"fuse_fp": False, "enable_backward": False})


@wp.kernel
def _numbers(
    ids: wp.array[wp.int64],
    key: wp.uint64,
    uniform: wp.array[wp.float64],
    drawn: wp.array[wp.float64],
    exponential: wp.array[wp.float64],
) -> None:
    i = wp.tid()
    drawn[i] = unit_of(row_key_of(key, ids[i]), ids[i] & wp.int64(1023))
    exponential[i] = exponential_of(uniform[i])


def _check(ids: np.ndarray, key: int, wholes: np.ndarray) -> None:
    """Compare the bits with those of torch, which `tests.sampler` compares with the CPU's."""
    found = torch.empty((2, ids.size), dtype=torch.float64)
    uniform, nodes = torch.from_numpy(wholes * 2.0**-53), torch.from_numpy(ids)
    wp.launch(
        _numbers,
        dim=ids.size,
        device="cpu",
        inputs=[*map(wp.from_torch, (nodes,)), key, *map(wp.from_torch, (uniform, *found))],
    )
    wanted = torch.stack(
        [units(row_keys(torch.tensor([signed(key)]), nodes), nodes & 1023), exponentials(uniform)]
    )
    # As numbers: finite ones are equal with their bits alone, but for the sign of 0, and no draw
    # sees that.
    assert found.isfinite().all()
    assert found.tolist() == wanted.tolist()


@settings(max_examples=examples(100), deadline=None)
@given(
    key=st.integers(0, 2**64 - 1),
    pairs=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**53 - 1)), max_size=20),
)
def test_numbers_have_the_bits_of_torch(key: int, pairs: list[tuple[int, int]]) -> None:
    ids, wholes = np.array([*pairs, (0, 0)], np.int64).T.copy()
    _check(ids, key, wholes)


def test_the_logarithm_near_its_ends_and_seams() -> None:
    rng = np.random.default_rng(1)
    wholes = np.concatenate(
        [
            rng.integers(0, 2**53, 100_000),
            rng.integers(0, 2**20, 10_000),
            2**53 - rng.integers(1, 2**20, 10_000),
            2**53 - 2 ** np.arange(53),
            2**53 - (2**53 * 0.5**0.5 * (1 + np.arange(-50, 50) * 1e-15)).astype(np.int64),
        ]
    )
    _check(np.arange(wholes.size), signed(7), wholes)
