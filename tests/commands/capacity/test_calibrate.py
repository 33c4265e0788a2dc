"""Costs are found again in times that they made."""

import numpy as np
import pytest

from gigl_loader.commands.capacity.calibrate import asking_costs, delivering_costs, non_negative
from gigl_loader.commands.capacity.trial_cluster import MeasuredBatch


def test_costs_are_found_again_in_times_that_they_made() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((8, 4)) * [1, 1e5, 1e5, 1e7]
    costs = np.array([1e-3, 1e-7, 0.0, 2e-10])
    assert non_negative(rows, rows @ costs) == pytest.approx(costs, rel=1e-6, abs=1e-15)


def test_costs_of_a_cluster_are_found_again() -> None:
    sampling = [1e-3, 1e-7, 2e-8, 3e-10]
    sizes = ((130_000.0, 150_000.0), (18_000.0, 19_000.0))

    def alone(nodes: float, edges: float) -> float:
        return 1e-3 + 1e-7 * edges + 2e-8 * nodes

    def rank(nodes: float, edges: float, width: int, hits: float) -> MeasuredBatch:
        rows, wide = nodes / 2, 4.0 * width
        seconds = alone(nodes, edges) + 3e-10 * nodes * wide + 5e-4 + 2e-7 * edges / 2
        if width:
            seconds += 2e-3 + rows * (1 - hits) * (3e-7 + 1e-9 * wide)
        if hits:
            seconds += 4e-3 + rows * (1e-7 + hits * 2e-10 * wide)
        return MeasuredBatch(nodes, edges, hits, seconds, 0.0)

    widths = [(0, 0.0), (16, 0.0), (128, 0.0), (16, 0.4), (128, 0.5)]
    found = asking_costs(sampling, [rank(*size, *one) for one in widths for size in sizes])
    assert found == pytest.approx(
        {
            "asked_batch_s": 5e-4,
            "asked_edge_s": 2e-7,
            "asked_rows_s": 2e-3,
            "asked_row_s": 3e-7,
            "asked_byte_s": 1e-9,
            "cached_batch_s": 4e-3,
            "cached_row_s": 1e-7,
            "cached_byte_s": 2e-10,
        }
    )

    def store(nodes: float, edges: float, width: int, hits: float) -> MeasuredBatch:
        structure_s = alone(nodes, edges) + 5e-4 + 2e-7 * edges / 2
        sent = 6e-4 + 3e-8 * edges + bool(width) * (7e-4 + nodes * (1e-7 + 8e-9 * width))
        received = 8e-4 + 4e-8 * edges + bool(width) * (9e-4 + nodes * (5e-7 + 4e-9 * width))
        if hits:
            received -= hits * nodes * (5e-7 + 4e-9 * width)
            received += 3e-4 + nodes * (2e-7 + hits * 6e-9 * width)
        return MeasuredBatch(nodes, edges, hits, received, structure_s + sent)

    batches = [store(*size, *one) for one in widths for size in sizes]
    assert delivering_costs(sampling, found, batches) == pytest.approx(
        {
            "sent_batch_s": 6e-4,
            "sent_edge_s": 3e-8,
            "sent_rows_s": 7e-4,
            "sent_row_s": 1e-7,
            "sent_byte_s": 2e-9,
            "received_batch_s": 8e-4,
            "received_edge_s": 4e-8,
            "received_rows_s": 9e-4,
            "received_row_s": 5e-7,
            "received_byte_s": 1e-9,
            "kept_batch_s": 3e-4,
            "kept_row_s": 2e-7,
            "kept_byte_s": 1.5e-9,
        }
    )


def test_no_cost_is_below_zero() -> None:
    """Of noise, least squares alone would take work that is paid back."""
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert np.linalg.lstsq(rows, np.array([3.0, 2.0, 1.0]), rcond=None)[0].min() < 0
    found = non_negative(rows, np.array([3.0, 2.0, 1.0]), np.ones(3))
    assert found == pytest.approx([2.0, 0.0]), "their mean, and nothing of each"
    assert non_negative(rows, -np.ones(3), np.ones(3)).tolist() == [0.0, 0.0]


def test_errors_are_relative_to_what_is_measured() -> None:
    rows, seconds = np.ones((2, 1)), np.array([1.0, 100.0])
    assert non_negative(rows, seconds, np.ones(2)) == pytest.approx([50.5])
    # of sum((c / s - 1)**2): sum(1 / s) / sum(1 / s**2)
    assert non_negative(rows, seconds) == pytest.approx([1.01 / 1.0001])
