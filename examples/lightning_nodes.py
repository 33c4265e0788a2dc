"""Train with Lightning: a `LightningDataModule` over a loader, and a checkpoint within an epoch.

    python examples/lightning_nodes.py

Lightning stores the `state_dict()` of a loader in its checkpoints and hands it back on resume, so a
run that starts from one goes on with the batches that had not been seen.
"""

import argparse
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from _data import digits
from lightning.pytorch.callbacks import ModelCheckpoint
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader


class GraphDataModule(lightning.LightningDataModule):
    """Loaders over one graph. Lightning calls `setup` when its process group is up, if it has one.

    Args:
        data: A PyG graph with split masks.
        num_neighbors: Fanout per hop.
        batch_size: Seeds per batch.
        seed: Decides order and draws; a run that resumes needs the same.
    """

    def __init__(self, data: Data, num_neighbors: list[int], batch_size: int, seed: int) -> None:
        super().__init__()
        self._data, self._seed = data, seed
        self._num_neighbors, self._batch_size = num_neighbors, batch_size
        self._loaders: list[DistNeighborLoader] = []
        self._owns_group = False

    def setup(self, stage: str) -> None:
        if not dist.is_initialized():  # one device: Lightning starts no group, the loaders need one
            store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            self._owns_group = True
        self._dataset = DistDataset.from_pyg(self._data)

    def train_dataloader(self) -> DistNeighborLoader:
        return self._loader("train", shuffle=True, even_ranks="wrap")

    def val_dataloader(self) -> DistNeighborLoader:
        return self._loader("val")

    def _loader(self, split: Literal["train", "val", "test"], **how: Any) -> DistNeighborLoader:
        loader = DistNeighborLoader(
            self._dataset,
            self._num_neighbors,
            self._dataset.split_node_ids(split),
            shard="world",  # all processes are given the same seeds, and share the batches out
            batch_size=self._batch_size,
            seed=self._seed,
            pin_memory_device=torch.device("cpu"),
            **how,  # Lightning moves batches itself
        )
        self._loaders.append(loader)
        return loader

    def teardown(self, stage: str) -> None:
        for loader in self._loaders:
            loader.shutdown()
        self._loaders.clear()
        if self._owns_group:
            dist.destroy_process_group()
            self._owns_group = False


class NodeClassifier(lightning.LightningModule):
    def __init__(self, num_features: int, num_classes: int, lr: float = 0.01) -> None:
        super().__init__()
        self._model = GraphSAGE(num_features, 64, 2, out_channels=num_classes, dropout=0.5)
        self._lr = lr

    def forward(self, batch: Data) -> torch.Tensor:
        return self._model(batch.x, batch.edge_index)[: batch.batch_size]

    def training_step(self, batch: Data, batch_idx: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch), batch.y[: batch.batch_size])
        self.log("loss", loss, prog_bar=True, batch_size=batch.batch_size)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        right = self(batch).argmax(dim=-1) == batch.y[: batch.batch_size]
        self.log(
            "accuracy",
            right.float().mean(),
            prog_bar=True,
            batch_size=batch.batch_size,
            sync_dist=True,
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self._lr)


def make_trainer(**how: Any) -> lightning.Trainer:
    return lightning.Trainer(
        use_distributed_sampler=False,  # the loader splits its seeds itself
        num_sanity_val_steps=0,
        accelerator="cpu",
        devices=1,
        logger=False,
        **how,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Lightning and resume in mid-epoch.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("out/lightning"))
    args = parser.parse_args()
    lightning.seed_everything(args.seed)

    data = digits()
    graph = GraphDataModule(data, [10, 10], batch_size=64, seed=args.seed)
    # an epoch has 17 steps: the checkpoint is written, and the run ends, within the second
    keep = ModelCheckpoint(args.folder, filename="{step}", every_n_train_steps=24)
    make_trainer(max_steps=26, callbacks=[keep]).fit(NodeClassifier(64, 10), graph)

    rest = make_trainer(max_epochs=args.epochs, enable_checkpointing=False)
    rest.fit(NodeClassifier(64, 10), graph, ckpt_path=keep.best_model_path)
    print(f"steps: {rest.global_step}")
    print(f"validation accuracy: {float(rest.callback_metrics['accuracy']):.4f}")


if __name__ == "__main__":
    main()
