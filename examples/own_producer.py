"""A loader with a producer of its own: a thread that sends messages by graphlearn-torch's keys.

torchrun --standalone --nproc-per-node=2 examples/own_producer.py
"""

import queue
import threading

import torch
import torch.distributed as dist
from _ranks import process_group
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gigl_loader import BaseDistLoader, DistDataset, NodeSamplerInput

CPU = torch.device("cpu")


# begin
class ThreadProducer:
    """Sends each batch of seeds with all their neighbours."""

    def __init__(self, data, seeds, batch_size):
        self.data, self.seeds, self.batch_size = data, seeds, batch_size
        self.messages: queue.Queue = queue.Queue(maxsize=4)
        self.output_channel = self
        self.recv = self.messages.get

    def init(self):
        pass

    def produce_all(self):
        threading.Thread(target=self.send, daemon=True).start()

    def send(self):
        for seeds in self.seeds.split(self.batch_size):
            source, target = self.data.edge_index
            source, target = source[torch.isin(target, seeds)], target[torch.isin(target, seeds)]
            others = source[~torch.isin(source, seeds)].unique()
            ids = torch.cat([seeds, others])
            place = torch.empty(self.data.num_nodes, dtype=torch.int64)
            place[ids] = torch.arange(ids.numel())
            message = {"ids": ids, "batch": seeds, "rows": place[target], "cols": place[source]}
            message |= {"nfeats": self.data.x[ids], "nlabels": self.data.y[ids]}
            self.messages.put(message)

    def shutdown(self):
        pass


class ThreadLoader(BaseDistLoader):
    """Batches of a `ThreadProducer`."""

    def __init__(self, data, seeds, batch_size):
        runtime, dataset = self.resolve_runtime(), DistDataset.from_pyg(data)
        address = runtime.master_ip_address
        port = self.initialize_colocated_sampling_worker(
            local_rank=runtime.local_rank,
            local_world_size=runtime.local_world_size,
            node_rank=0,
            node_world_size=1,
            master_ip_address=address,
            device=CPU,
            num_cpu_threads=1,
        )
        options = self.create_colocated_worker_options(
            dataset_num_partitions=1,
            num_workers=1,
            worker_concurrency=1,
            master_ip_address=address,
            master_port=port,
            channel_size="1MB",
            pin_memory=False,
        )
        config = self.create_sampling_config([-1], dataset.schema, batch_size)
        producer = ThreadProducer(data, seeds, batch_size)
        super().__init__(
            dataset,
            NodeSamplerInput(seeds),
            dataset.schema,
            options,
            config,
            CPU,
            runtime,
            producer,
            process_start_gap_seconds=0,
        )


# end


def graph():
    """Return a graph whose labels are the classes of most neighbours."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (600,), generator=draw)
    edges = torch.randint(600, (2, 20000), generator=draw)
    like = labels[edges[0]] == labels[edges[1]]
    kept = like | (torch.rand(20000, generator=draw) < 0.1)
    noisy = torch.nn.functional.one_hot(labels, 3) + torch.randn(600, 3, generator=draw)
    return Data(x=noisy, y=labels, edge_index=edges[:, kept])


def train():
    """Train on half of the nodes, each rank its share, and print the accuracy of the others."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data = graph()
    model = DistributedDataParallel(SAGEConv(3, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with ThreadLoader(data, torch.arange(300)[rank::world], 25) as loader:
        for _ in range(10):
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        found = model(data.x, data.edge_index)[300:].argmax(1)
    if rank == 0:
        print(f"accuracy {(found == data.y[300:]).double().mean():.3f}")


if __name__ == "__main__":
    with process_group():  # which ends after the model is gone
        train()
