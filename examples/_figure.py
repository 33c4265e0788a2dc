"""The training curve of the examples as a picture."""

from pathlib import Path


def save_curve(path: Path, losses: list[float], accuracies: list[float], title: str) -> None:
    """Draw loss and validation accuracy by epoch into a PNG at ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = range(1, len(losses) + 1)
    figure, loss_axis = pyplot.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    accuracy_axis = loss_axis.twinx()
    loss_axis.plot(epochs, losses, color="tab:blue", label="training loss")
    accuracy_axis.plot(epochs, accuracies, color="tab:orange", label="validation accuracy")
    loss_axis.set(xlabel="epoch", title=title)
    loss_axis.set_ylabel("training loss", color="tab:blue")
    loss_axis.set_ylim(bottom=0)
    loss_axis.xaxis.get_major_locator().set_params(integer=True)
    accuracy_axis.set_ylabel("validation accuracy", color="tab:orange")
    accuracy_axis.set_ylim(0, 1)
    loss_axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
