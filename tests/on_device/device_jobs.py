"""What ranks of `test_device_batches` run."""

from pathlib import Path

import digest_cases as cases


def of_a_rank(rank: int, size: int, folder: Path, names: list[str]) -> None:
    """Each rank has the whole graph on a device of its own, and takes its batches of the job."""
    for name in names:
        case = cases.CASES[name]
        dataset = case.partition(0, 1).to("cpu", kernels="torch")
        with case.make(dataset, case.seeds(), num_workers=0) as loader:
            cases.write(folder, name, rank, cases.digests(loader, rank, size))
