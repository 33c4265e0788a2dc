from gigl_loader.batch.check_padding import check_padding as check_padding
from gigl_loader.batch.device.prefetch import DevicePrefetcher as DevicePrefetcher
from gigl_loader.batch.padding import padding_sizes as padding_sizes
from gigl_loader.batch.tokens import Tokens as Tokens
from gigl_loader.compat.gigl_task import build_dataset as build_dataset
from gigl_loader.compat.gigl_task import (
    build_dataset_from_task_config_uri as build_dataset_from_task_config_uri,
)
from gigl_loader.dataset.dist_dataset import DistDataset as DistDataset
from gigl_loader.dataset.lookup import DistFeature as DistFeature
from gigl_loader.dataset.partition.partition_output import (
    FeaturePartitionData as FeaturePartitionData,
)
from gigl_loader.dataset.partition.partition_output import GraphPartitionData as GraphPartitionData
from gigl_loader.dataset.partition.partition_output import PartitionOutput as PartitionOutput
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE as DEFAULT_HOMOGENEOUS_EDGE_TYPE,
)
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE as DEFAULT_HOMOGENEOUS_NODE_TYPE,
)
from gigl_loader.dataset.schema import DatasetSchema as DatasetSchema
from gigl_loader.dataset.schema import FeatureInfo as FeatureInfo
from gigl_loader.dataset.schema import is_label_edge_type as is_label_edge_type
from gigl_loader.dataset.schema import (
    message_passing_to_negative_label as message_passing_to_negative_label,
)
from gigl_loader.dataset.schema import (
    message_passing_to_positive_label as message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError as ConfigError
from gigl_loader.errors import FileChangedError as FileChangedError
from gigl_loader.errors import GiglLoaderError as GiglLoaderError
from gigl_loader.errors import GraphWarning as GraphWarning
from gigl_loader.errors import JobStoppedError as JobStoppedError
from gigl_loader.errors import JoinRefusedError as JoinRefusedError
from gigl_loader.errors import NativeLibraryError as NativeLibraryError
from gigl_loader.errors import NotReadyError as NotReadyError
from gigl_loader.errors import ObjectStorageError as ObjectStorageError
from gigl_loader.errors import PeerError as PeerError
from gigl_loader.errors import PeerLostError as PeerLostError
from gigl_loader.errors import PeerTimeoutError as PeerTimeoutError
from gigl_loader.errors import ProtocolError as ProtocolError
from gigl_loader.errors import RemoteError as RemoteError
from gigl_loader.errors import ResourceError as ResourceError
from gigl_loader.errors import SamplingError as SamplingError
from gigl_loader.errors import ServerDiedError as ServerDiedError
from gigl_loader.errors import UsageError as UsageError
from gigl_loader.errors import WorkerDiedError as WorkerDiedError
from gigl_loader.errors import WrongTypeError as WrongTypeError
from gigl_loader.graph_store.client.remote_dist_dataset import (
    RemoteDistDataset as RemoteDistDataset,
)
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo as GraphStoreInfo
from gigl_loader.inference.full_graph import full_graph as full_graph
from gigl_loader.inference.layerwise import NodeEmbeddings as NodeEmbeddings
from gigl_loader.inference.layerwise import full_graph_inference as full_graph_inference
from gigl_loader.loader.ablp import DistABLPLoader as DistABLPLoader
from gigl_loader.loader.ablp import in_batch_negative_mask as in_batch_negative_mask
from gigl_loader.loader.ablp import zip_with_negatives as zip_with_negatives
from gigl_loader.loader.base import BaseDistLoader as BaseDistLoader
from gigl_loader.loader.deployment.job_ranks import DistributedContext as DistributedContext
from gigl_loader.loader.deployment.job_ranks import DistributedRuntimeInfo as DistributedRuntimeInfo
from gigl_loader.loader.edge_loader import DistLinkNeighborLoader as DistLinkNeighborLoader
from gigl_loader.loader.epochs.checkpoints import load_checkpoint as load_checkpoint
from gigl_loader.loader.epochs.checkpoints import save_checkpoint as save_checkpoint
from gigl_loader.loader.node_loader import DistNeighborLoader as DistNeighborLoader
from gigl_loader.loader.node_loader import DistSubGraphLoader as DistSubGraphLoader
from gigl_loader.loader.profile import profile_workers as profile_workers
from gigl_loader.loader.profile import replay as replay
from gigl_loader.loader.seeds.split import Split as Split
from gigl_loader.loader.seeds.tasks import Task as Task
from gigl_loader.partitioning.databases.partition_database import (
    partition_database as partition_database,
)
from gigl_loader.partitioning.partition_graph import partition_graph as partition_graph
from gigl_loader.partitioning.partition_tables import partition_tables as partition_tables
from gigl_loader.partitioning.split_links import LinkSplit as LinkSplit
from gigl_loader.partitioning.split_links import LinkSplits as LinkSplits
from gigl_loader.partitioning.split_links import split_links as split_links
from gigl_loader.partitioning.split_links import split_partitions as split_partitions
from gigl_loader.partitioning.split_links import split_supervision_type as split_supervision_type
from gigl_loader.partitioning.tables.spec import EdgeTable as EdgeTable
from gigl_loader.partitioning.tables.spec import NodeTable as NodeTable
from gigl_loader.runtime.memory.segments import SharedMemoryError as SharedMemoryError
from gigl_loader.runtime.ranks.for_scripts import on_all_ranks as on_all_ranks
from gigl_loader.runtime.ranks.for_scripts import shared_folder as shared_folder
from gigl_loader.runtime.ranks.for_scripts import sum_over_ranks as sum_over_ranks
from gigl_loader.sampler.options import CustomSamplerOptions as CustomSamplerOptions
from gigl_loader.sampler.options import FeatureStoreOptions as FeatureStoreOptions
from gigl_loader.sampler.options import KHopNeighborSamplerOptions as KHopNeighborSamplerOptions
from gigl_loader.sampler.options import PPRSamplerOptions as PPRSamplerOptions
from gigl_loader.sampler.options import SamplerOptions as SamplerOptions
from gigl_loader.sampler.options import TokenOptions as TokenOptions
from gigl_loader.sources.node_input import NodeSamplerInput as NodeSamplerInput
from gigl_loader.sources.remote_interface import ABLPInputNodes as ABLPInputNodes
from gigl_loader.sources.workers.producer import DistSamplingProducer as DistSamplingProducer
from gigl_loader.sources.workers.resting import release_workers as release_workers
