"""A storage server and its client, as GiGL's suites call them.

They call a server's methods without a server, by GiGL's requests, and answer a client's requests
themselves. This puts such a pair in the place of ours. It uses names of this package that others
use, and the one method by which `RemoteDistDataset` sends its requests.
"""

from importlib import import_module
from typing import Any

import gigl_loader
from gigl_loader.dataset.identity import WHOLE, Share
from gigl_loader.dataset.schema import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.requests import NodeIdsRequest

import_module("gigl_loader.runtime.glt_classes")  # before GiGL's imports of graphlearn-torch
# a name that tests import, of what is not here
import_module("gigl.distributed.sampler").EDGE_PACKED_FEATURES_METADATA_KEY = ""  # type: ignore[attr-defined]
dist_server: Any = import_module("gigl.distributed.graph_store.dist_server")
messages: Any = import_module("gigl.distributed.graph_store.messages")
remote: Any = import_module("gigl.distributed.graph_store.remote_dist_dataset")
sharding: Any = import_module("gigl.distributed.graph_store.sharding")


class Server(StorageService):
    """A server with GiGL's requests and answers."""

    def get_node_ids(self, request: Any = None) -> Any:
        return super().get_node_ids(_ours(request))

    def get_ablp_input(self, request: Any, supervision_edge_type: Any = None) -> Any:
        of_type = supervision_edge_type or request.supervision_edge_type
        _, anchors, *labels = super().get_ablp_input(_ours(request), of_type)
        return anchors, *(None if one is None else next(iter(one.values())) for one in labels)


class Client(gigl_loader.RemoteDistDataset):
    """A client that sends GiGL's requests, by functions that tests replace."""

    def _ask_each(self, name: str, requests: dict[int, dict[str, Any]]) -> dict[int, Any]:
        method, given = getattr(Server, name), requests.items()
        if name not in ("get_node_ids", "get_ablp_input"):
            return {rank: remote.request_server(rank, method, *one.values()) for rank, one in given}
        asked = {rank: _theirs(rank, **one) for rank, one in given}
        answers = {
            rank: remote.async_request_server(rank, method, one) for rank, one in asked.items()
        }
        return {rank: _read(asked[rank], answers[rank].wait()) for rank in asked}

    def fetch_schema(self) -> Any:
        """Return what a mock of GiGL's says by its own methods."""
        if hasattr(self, "local_rank"):
            return super().fetch_schema()
        types = self.fetch_edge_types()
        infos = self.fetch_node_feature_info(), self.fetch_edge_feature_info()
        return gigl_loader.DatasetSchema(False, types, *infos, self.fetch_edge_dir())

    def fetch_num_nodes(self) -> Any:
        """Return as many as a mock's seeds need."""
        if hasattr(self, "local_rank"):
            return super().fetch_num_nodes()
        return {gigl_loader.DEFAULT_HOMOGENEOUS_NODE_TYPE: 100}


def _ours(request: Any) -> NodeIdsRequest:
    if isinstance(request, NodeIdsRequest):
        return request
    cut = request.server_slice
    share = Share(cut.start_numerator, cut.end_numerator, cut.denominator) if cut else WHOLE
    return NodeIdsRequest(split=request.split, node_type=request.node_type, share=share)


def _theirs(rank: int, request: NodeIdsRequest, **labels: Any) -> Any:
    share, cut = request.share, None
    if share != WHOLE:
        cut = sharding.ServerSlice(rank, share.start, share.end, share.of)
    if not labels:
        return messages.FetchNodesRequest(request.split, request.node_type, cut)
    of_type = labels["supervision_edge_type"] or gigl_loader.DEFAULT_HOMOGENEOUS_EDGE_TYPE
    anchors = request.node_type or of_type[0]
    return messages.FetchABLPInputRequest(request.split, anchors, of_type, cut)


def _read(request: Any, answer: Any) -> Any:
    if not isinstance(answer, tuple):
        return answer
    anchors, positives, negatives = answer
    of_type = request.supervision_edge_type
    by_type = {message_passing_to_negative_label(of_type): negatives}
    of_positives = {message_passing_to_positive_label(of_type): positives}
    return request.node_type, anchors, of_positives, None if negatives is None else by_type


def _call_func_on_server(func: Any, *args: Any) -> Any:
    return getattr(dist_server._dist_server, func.__name__)(*args)


def _request_server(rank: int, func: Any, *args: Any) -> Any:
    del rank
    return _call_func_on_server(func, *args)


dist_server.DistServer, dist_server._call_func_on_server = Server, _call_func_on_server
dist_server._dist_server = None
remote.RemoteDistDataset = Client
remote.request_server = remote.async_request_server = _request_server
# values that both have: scripts import them from gigl_loader
import_module("gigl.types.graph").FeatureInfo = gigl_loader.FeatureInfo  # type: ignore[attr-defined]
import_module("gigl.utils.sampling").ABLPInputNodes = gigl_loader.ABLPInputNodes  # type: ignore[attr-defined]
