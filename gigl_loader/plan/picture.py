"""Seeds per second over machines, each bound as a line."""

from pathlib import Path

from gigl_loader.errors import ConfigError
from gigl_loader.plan.costs import Costs
from gigl_loader.plan.expect import DegreeDistribution
from gigl_loader.plan.model import Job, estimate


def draw(path: Path, job: Job, costs: Costs, degrees: DegreeDistribution | None = None) -> None:
    """Write a picture; its kind is that of the path's suffix.

    Raises:
        ConfigError: matplotlib is not installed, knows no such kind of picture, or cannot write it.
    """
    try:  # without pyplot, which would choose a backend for the whole process, a notebook's too
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--picture needs matplotlib: run pip install matplotlib") from error
    figure = Figure(figsize=(7, 4.5))
    # Before any work: a wrong suffix would be found when all is drawn.
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in kinds:
        raise ConfigError(f"--picture {path} must end in one of: .{', .'.join(sorted(kinds))}")
    # An eighth to eight times as many as are planned for, in steps of two as the axis has.
    counts = sorted({max(1, round(job.machines * 2**k)) for k in range(-3, 4)})
    jobs = [
        job.with_machines(count, job.servers)
        for count in counts
        if job.is_store or count <= job.nodes
    ]
    counts = [one.machines for one in jobs]
    plans = [estimate(one, costs, degrees) for one in jobs]
    axes = figure.subplots()
    # The first may be one machine alone, which has no links; a limit that is not there is no point.
    for number, name in enumerate(plans[0].bounds | plans[-1].bounds):
        values = [plan.bounds.get(name, float("inf")) for plan in plans]
        # Where lines lie on each other, as the limit and what it leaves do, dashes take turns
        axes.plot(counts, values, linestyle=(3 * number, (3, 6)), linewidth=2, zorder=3, label=name)
    most = [plan.seeds_per_second for plan in plans]
    axes.plot(counts, most, "-o", color="0.7", linewidth=4, zorder=2, label="what is left")
    low = [rate / (1 + plan.spread) for rate, plan in zip(most, plans, strict=True)]
    high = [rate * (1 + plan.spread) for rate, plan in zip(most, plans, strict=True)]
    axes.fill_between(counts, low, high, color="k", alpha=0.12)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("training machines")
    axes.set_ylabel("seeds/s of all ranks")
    axes.set_title(f"{job.deployment}, {job.nodes:,.0f} nodes, {job.edges:,.0f} edges, {job.dim} "
                   f"{job.dtype}, {list(job.fanouts)}", fontsize=9)  # fmt: skip
    axes.legend(fontsize=8, handlelength=4)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--picture {path} cannot be written: {error.strerror}") from error
