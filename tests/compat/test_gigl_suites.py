"""GiGL's own suites at the seam, with `gigl_loader` in the place of ``gigl.distributed``.

They are read from the git directory that ``GIGL_REPOSITORY`` names, as they are; without one these
tests are left out. ``gigl_stand_ins`` has what they need and a machine of tests lacks; of this
package it uses what others use, so that a change which would break such code fails here.
"""

import json
import tempfile
from pathlib import Path

import pytest

from tests.compat.gigl_tree import run_python, write_tree

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]

CLOUD = "the graph, or what describes it, is in Google's cloud"
PACKED = "packed columns: they are read from a task's files alone, into floats"
STEPS = "backends and channels of GiGL's servers, by their own names and attributes"
BOOKS = "a book of ranges where GiGL has a tensor; None where no edge is looked up"
CALL = "a function of GiGL's servers, which has a stand-in"
SKIPPED = "GiGL leaves it out"
DISTRIBUTED = "tests.unit.distributed"
SUITES: dict[str, tuple[int, dict[str, list[str]]]] = {
    "dist_ppr_sampler_test": (11, {}),
    "dist_ablp_neighborloader_test": (
        22,
        {
            CLOUD: [
                "DistABLPLoaderTest.test_cora_supervised",
                "DistABLPLoaderTest.test_toy_heterogeneous_ablp_",
            ],
            PACKED: ["DistABLPLoaderTest.test_homogeneous_ablp_materializes_quantized_features"],
            SKIPPED: ["DistABLPLoaderTest.test_dblp_supervised"],
        },
    ),
    "distributed_neighborloader_test": (
        36,
        {
            CLOUD: [
                "DistributedNeighborLoaderTest.test_cora_supervised_node_classification",
                "DistributedNeighborLoaderTest.test_distributed_neighbor_loader",
                "DistributedNeighborLoaderTest.test_infinite_distributed_neighbor_loader",
                "DistributedNeighborLoaderTest.test_multiple_neighbor_loader",
                "DistributedNeighborLoaderTest.test_random_loading_labeled_homogeneous",
            ],
            SKIPPED: [
                "DistributedNeighborLoaderTest.test_distributed_neighbor_loader_heterogeneous"
            ],
            PACKED: [
                "DistributedNeighborLoaderTest."
                "test_distributed_neighbor_loader_materializes_quantized_node_features",
                "DistributedNeighborLoaderTest."
                "test_heterogeneous_loader_supports_partially_quantized_node_types",
                "HeterogeneousEdgeFeatureLookupTest."
                "test_heterogeneous_loader_supports_partially_quantized_edge_types",
                "HeterogeneousEdgeFeatureLookupTest."
                "test_incoming_edges_reverse_feature_metadata_and_output_stores",
                "SamplingSeedTest.test_packed_edge_metadata_requests_sampled_edge_ids",
            ],
            "rows for 10 nodes of a partition book of 5 are refused": [
                "DistributedNeighborLoaderTest."
                "test_distributed_neighbor_loader_with_node_labels_homogeneous"
            ],
            "an edge without a row is refused when the dataset is built, not when it is sampled": [
                "TestSamplingErrorPropagation.test_reachable_sampler_failure_raises_not_hangs"
            ],
        },
    ),
    "dist_server_test": (
        46,
        {
            PACKED: [
                "TestRemoteDataset.test_get_quantization_metadata",
                "TestRemoteDataset.test_remote_dataset_fetches_quantization_metadata",
            ],
            STEPS: [
                "TestDistServerSampling.",
                "TestStartNewEpochSamplingChannelLookup.",
                "TestWaitAndShutdownServer.",
            ],
        },
    ),
    "graph_store.remote_dist_dataset_test": (
        38,
        {
            BOOKS: [
                "TestRemoteDistDataset.test_fetch_edge_partition_book_homogeneous",
                "TestRemoteDistDataset.test_fetch_node_partition_book_homogeneous",
                "TestRemoteDistDatasetHeterogeneous.test_fetch_edge_partition_book_heterogeneous",
                "TestRemoteDistDatasetHeterogeneous.test_fetch_node_partition_book_heterogeneous",
                "TestRemoteDistDatasetLabeledHomogeneous."
                "test_fetch_edge_partition_book_auto_infers_default_edge_type",
                "TestRemoteDistDatasetLabeledHomogeneous."
                "test_fetch_node_partition_book_auto_infers_default_node_type",
            ],
            "one of both types is enough: the server knows the other": [
                "TestRemoteDistDatasetLabeledHomogeneous."
                "test_fetch_ablp_input_mismatched_params_raises"
            ],
            "a server without a share has an empty tensor of negatives, not None": [
                "TestRemoteDistDatasetSharding.test_fetch_ablp_input_contiguous_even_split"
            ],
            CALL: [
                "TestCallFuncOnServer.test_falls_back_for_non_server_function",
                "TestCallFuncOnServer.test_non_callable_returns_none",
                "TestCallFuncOnServer.test_raises_when_server_not_initialized",
            ],
        },
    ),
}
"""How many tests a suite has, and those that do not pass, by the reason; some are prefixes."""


@pytest.mark.parametrize("suite", SUITES)
def test_what_passes_of_a_suite(tmp_path: Path, suite: str) -> None:
    num_tests, reasons = SUITES[suite]
    tree = write_tree(tmp_path)
    command = "-m", "run_suite", f"{DISTRIBUTED}.{suite}"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets are in it
        how = {"GIGL_SUITE": "1", "TMPDIR": short}
        said, log = run_python(tree, tmp_path, *command, limit_s=1100.0, **how)
    ended = json.loads(said.splitlines()[-1])
    assert len(ended) == num_tests
    others = sorted(name for name, how in ended.items() if how != "passed")
    known = [name for names in reasons.values() for name in names]
    found = {name: [one for one in known if _is(name, one)] for name in others}
    assert [name for name, of in found.items() if not of] == [], log[-4000:]
    # those that pass now leave the list
    assert set(known) == {one for of in found.values() for one in of}


def test_the_page_names_each_test_that_does_not_pass() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/from_gigl.md").read_text()
    known = (name for _, reasons in SUITES.values() for names in reasons.values() for name in names)
    named = {name.rstrip(".").rpartition(".")[2] for name in known}
    ended = {name + "..." if name.endswith("_") else name for name in named}
    assert [name for name in sorted(ended) if f"`{name}`" not in page] == []


def _is(name: str, known: str) -> bool:
    return name.startswith(known) if known.endswith((".", "_")) else name == known
