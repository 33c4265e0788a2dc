"""The training curve of the examples as a picture."""

from collections.abc import Sequence
from pathlib import Path


def save_curve(
    path: Path,
    losses: list[float],
    measured: list[float],
    title: str,
    *,
    epochs: list[int] | None = None,
    measure: str = "validation accuracy",
) -> None:
    """Draw the loss and a measure between 0 and 1 by epoch into a PNG at ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    positions = epochs or range(1, len(losses) + 1)
    figure, loss_axis = pyplot.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    other_axis = loss_axis.twinx()
    loss_axis.plot(positions, losses, color="tab:blue")
    other_axis.plot(positions, measured, color="tab:orange")
    loss_axis.set(xlabel="epoch", title=title)
    loss_axis.set_ylabel("training loss", color="tab:blue")
    loss_axis.set_ylim(bottom=0)
    loss_axis.xaxis.get_major_locator().set_params(integer=True)
    other_axis.set_ylabel(measure, color="tab:orange")
    other_axis.set_ylim(0, 1)
    loss_axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def save_lines(path: Path, names: Sequence[str], curve: Sequence[Sequence[float]]) -> None:
    """Draw the accuracies of several models, by epoch, into a PNG at ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    epochs = range(1, len(curve) + 1)
    for name, line in zip(names, zip(*curve, strict=True), strict=True):
        axis.plot(epochs, line, "-" if name != names[-1] else "--", marker=".", label=name)
    axis.set(xlabel="epoch", ylabel="accuracy on other users", ylim=(0.4, 1.03))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(loc="center right")
    axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
