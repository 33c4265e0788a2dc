"""The calls of a storage server, made from its methods' signatures, and the values they carry.

Each abstract method of `DistServer` may be called over the network, and `calls_of` makes a `Call`
of it: a request with a field for each parameter, and a response with the result. Both are
dataclasses of what `gigl_loader.runtime.transport` carries: plain values, dataclasses of them and
numpy arrays. Tensors and GLT's classes become messages and are rebuilt at the other end;
nothing is pickled, and nothing that arrives can name code, but for a sampler's import path, which a
server has to allow.

The transport decodes strictly into these dataclasses, so a broken peer, or one of another version,
is a `ProtocolError` that names the call and the field, and not a strange batch.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.message import columns_of
from gigl_loader.dataset.partition.frames import Frames
from gigl_loader.dataset.schema import DatasetSchema, EdgeDir, EdgeType, FeatureInfo, NodeType
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.runtime.decoding import Name
from gigl_loader.runtime.glt_classes import (
    NodeSamplerInput,
    RangePartitionBook,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    SamplingType,
)
from gigl_loader.runtime.memory.tensors import as_array, dtype_name
from gigl_loader.runtime.sizes import parse_size
from gigl_loader.sampler.options import (
    CustomSamplerOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
)
from gigl_loader.sources.held_seeds import HeldPart, HeldSeeds
from gigl_loader.sources.remote_interface import server_worker_options

Fanout = list[int] | dict[EdgeType, list[int]] | None

_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool"),
        *("bfloat16", "float16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    # releases of torch differ in the 8-bit and the unsigned types that they have
    if hasattr(torch, name)
}


def dtype_of(name: str) -> torch.dtype:
    """Return torch's type of that name.

    Raises:
        ProtocolError: Tensors of this kind cannot be sent.
    """
    dtype: torch.dtype | None = _DTYPES.get(name)
    if dtype is None:
        raise ProtocolError(
            f"a tensor of type {name!r} came: those that travel are {list(_DTYPES)}"
        )
    return dtype


@dataclass(frozen=True)
class TensorMessage:
    """A tensor: its bits as an array, and torch's name of its type."""

    dtype: str
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorMessage":
        """Return ``tensor`` as it travels."""
        name = dtype_name(tensor.dtype)
        if name not in _DTYPES:
            raise ConfigError(
                f"a tensor of {tensor.dtype} cannot be sent: it may be {list(_DTYPES)}"
            )
        # a view if the tensor is contiguous and on the CPU: nobody may change it before the
        # response has come
        return cls(name, as_array(tensor.cpu()))

    @property
    def result(self) -> Tensor:
        """The tensor, in the memory that was received."""
        dtype = dtype_of(self.dtype)
        # no copy: the array's memory came with the message, and the tensor keeps it alive
        tensor = torch.from_numpy(self.array)
        # both come from the other side, and `view` would make another shape from items of another
        # size
        if tensor.element_size() != dtype.itemsize:
            raise ProtocolError(f"a tensor of {dtype} came as an array of {self.array.dtype}")
        if tensor.numel() == 0:  # no strides to reinterpret
            return torch.empty(tensor.shape, dtype=dtype, device="cpu")
        return tensor if tensor.dtype == dtype else tensor.view(dtype)


@dataclass(frozen=True)
class InputMessage:
    """A ``NodeSamplerInput``, with its further columns."""

    node: TensorMessage
    input_type: NodeType | None
    extra: dict[str, TensorMessage]
    held: tuple[HeldPart, ...] = ()
    """What the servers read themselves, in place of ``node``."""

    @classmethod
    def of(cls, value: NodeSamplerInput) -> "InputMessage":
        """Return ``value`` as it travels."""
        extra = {name: TensorMessage.of(column) for name, column in columns_of(value).items()}
        held = value.parts if isinstance(value, HeldSeeds) else ()
        return cls(TensorMessage.of(value.node), value.input_type, extra, held)

    @property
    def result(self) -> NodeSamplerInput:
        """The input."""
        sampler_input = (
            HeldSeeds(self.held, self.input_type)
            if self.held
            else NodeSamplerInput(self.node.result, self.input_type)
        )
        sampler_input.extra = {name: column.result for name, column in self.extra.items()}
        return sampler_input


@dataclass(frozen=True)
class SamplingConfigMessage:
    """A GLT ``SamplingConfig``."""

    sampling_type: str
    num_neighbors: Fanout
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: str
    seed: int | None

    @classmethod
    def of(cls, value: SamplingConfig) -> "SamplingConfigMessage":
        """Return ``value`` as it travels."""
        fields = {name: getattr(value, name) for name in cls.__dataclass_fields__}
        return cls(**{**fields, "sampling_type": value.sampling_type.name})

    @property
    def result(self) -> SamplingConfig:
        """The config."""
        # by name: GLT's enumeration and ours are two classes, and either end may use either
        if self.sampling_type not in SamplingType.__members__:
            raise ProtocolError(f"there is no sampling type {self.sampling_type!r}")
        return SamplingConfig(**{**vars(self), "sampling_type": SamplingType[self.sampling_type]})


@dataclass(frozen=True)
class WorkerOptionsMessage:
    """The fields of GLT's ``RemoteDistSamplingWorkerOptions`` that matter for CPU workers."""

    server_rank: list[int]
    num_workers: int
    worker_concurrency: int
    master_addr: str
    master_port: int
    rpc_timeout: float
    buffer_size: int
    prefetch_size: int
    worker_key: Name | None

    @classmethod
    def of(cls, value: RemoteDistSamplingWorkerOptions) -> "WorkerOptionsMessage":
        """Return ``value`` as it travels."""
        servers = value.server_rank
        fields = {
            **{name: getattr(value, name) for name in cls.__dataclass_fields__},
            "server_rank": [servers] if isinstance(servers, int) else list(servers),
            "master_port": int(value.master_port),
            "buffer_size": parse_size(value.buffer_size, "buffer_size"),
        }
        return cls(**fields)

    @property
    def result(self) -> RemoteDistSamplingWorkerOptions:
        """The options."""
        return server_worker_options(**vars(self))


@dataclass(frozen=True)
class SamplerMessage:
    """Another sampler: an import path and plain keywords; without a path the fanout."""

    class_path: str | None = None
    keywords: dict[str, Any] | None = None
    num_neighbors: Fanout = None

    @classmethod
    def of(cls, value: SamplerOptions) -> "SamplerMessage":
        """Return ``value`` as it travels."""
        if isinstance(value, KHopNeighborSamplerOptions):
            return cls(num_neighbors=value.num_neighbors)
        if not isinstance(value, CustomSamplerOptions):  # loaders name their sampler's class
            raise ConfigError(f"{type(value).__name__} cannot be sent: give CustomSamplerOptions")
        try:
            # encoded now, on the side that can correct it: the transport would refuse it in the
            # middle of a call
            msgspec.msgpack.encode(value.keywords)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"keywords of {value.class_path} cannot be sent to storage servers "
                f"({error}): give None, numbers, strings, bytes, and lists and dicts of these"
            ) from error
        return cls(value.class_path, value.keywords)

    @property
    def result(self) -> CustomSamplerOptions | KHopNeighborSamplerOptions:
        """The options."""
        # one message for two classes: the set fields tell the class
        if self.class_path is None:
            if self.num_neighbors is None:
                raise ProtocolError("sampler options name neither a class nor a fanout")
            return KHopNeighborSamplerOptions(self.num_neighbors)
        return CustomSamplerOptions(self.class_path, self.keywords or {})


@dataclass(frozen=True)
class FeatureInfosMessage:
    """A ``FeatureInfo``, a dict of them by type, or None."""

    by_type: bool
    infos: tuple[tuple[NodeType | EdgeType | None, int, str], ...]
    """Type, or None for all, width and dtype of each."""

    @classmethod
    def of(cls, value: Any) -> "FeatureInfosMessage":
        """Return ``value`` as it travels."""
        by_type = value if isinstance(value, dict) else {} if value is None else {None: value}
        infos = ((name, info.dim, dtype_name(info.dtype)) for name, info in by_type.items())
        return cls(isinstance(value, dict), tuple(infos))

    @property
    def result(self) -> Any:
        """The value that was encoded."""
        infos = {name: FeatureInfo(dim, dtype_of(dtype)) for name, dim, dtype in self.infos}
        return infos if self.by_type else infos.get(None)


_FEATURE_INFOS = ("node_feature_info", "edge_feature_info")


@dataclass(frozen=True)
class SchemaMessage:
    """A `DatasetSchema`."""

    is_homogeneous_with_labeled_edge_type: bool
    edge_types: list[EdgeType] | None
    node_feature_info: FeatureInfosMessage
    edge_feature_info: FeatureInfosMessage
    edge_dir: EdgeDir
    node_attributes: dict[NodeType, tuple[str, ...]]
    edge_attributes: dict[EdgeType, tuple[str, ...]]
    num_classes: dict[NodeType, int]
    types_with_communities: tuple[NodeType, ...]
    frames: Frames

    @classmethod
    def of(cls, value: DatasetSchema) -> "SchemaMessage":
        """Return ``value`` as it travels."""
        infos = {name: FeatureInfosMessage.of(getattr(value, name)) for name in _FEATURE_INFOS}
        return cls(**{**vars(value), **infos})

    @property
    def result(self) -> DatasetSchema:
        """The schema."""
        infos = {name: getattr(self, name).result for name in _FEATURE_INFOS}
        return DatasetSchema(**{**vars(self), **infos})


@dataclass(frozen=True)
class BookMessage:
    """A partition book: ranges of ids, or the owner of each id; neither: there is none."""

    bounds: TensorMessage | None = None
    table: TensorMessage | None = None
    partition_idx: int = 0

    @classmethod
    def of(cls, value: Any) -> "BookMessage":
        """Return a range book, a tensor or None as it travels."""
        bounds = getattr(value, "partition_bounds", None)
        # recognised by its bounds, not by its class, as GLT's and ours are two
        if isinstance(bounds, Tensor):
            return cls(bounds=TensorMessage.of(bounds), partition_idx=int(value.partition_idx))
        return cls() if value is None else cls(table=TensorMessage.of(value.as_subclass(Tensor)))

    @property
    def result(self) -> Any:
        """The book."""
        if self.bounds is None:
            return None if self.table is None else self.table.result
        # GLT keeps the ends of ranges, and is made from ranges that begin at the previous end
        ends = self.bounds.result.tolist()
        return RangePartitionBook(list(zip([0, *ends], ends, strict=False)), self.partition_idx)


FeatureInfos = Annotated[Any, FeatureInfosMessage]
"""A ``FeatureInfo``, a dict of them by type, or None."""
PartitionBook = Annotated[Any, BookMessage]
"""A partition book, or None."""
BY_ANNOTATION = (FeatureInfosMessage, BookMessage)
"""Messages for types in signatures whose values alone do not tell the message."""

_MESSAGES: dict[Any, Any] = {
    Tensor: TensorMessage,
    NodeSamplerInput: InputMessage,
    SamplingConfig: SamplingConfigMessage,
    RemoteDistSamplingWorkerOptions: WorkerOptionsMessage,
    KHopNeighborSamplerOptions: SamplerMessage,
    CustomSamplerOptions: SamplerMessage,
    PPRSamplerOptions: SamplerMessage,
    DatasetSchema: SchemaMessage,
}
"""Messages by the class of a value, for all values whose class tells the message."""
_ALL_MESSAGES: Any = (*_MESSAGES.values(), *BY_ANNOTATION)


def wire_type(hint: Any) -> Any:
    """Return the type that travels in place of a type of a signature."""
    if typing.get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    arguments = typing.get_args(hint)
    # literals and arrays stay unchanged
    if not arguments or typing.get_origin(hint) in (typing.Literal, np.ndarray):
        return _MESSAGES.get(hint, hint)
    wired = tuple(argument if argument is ... else wire_type(argument) for argument in arguments)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.Union[wired]  # noqa: UP007  (built from a tuple)
    return typing.get_origin(hint)[wired]


def to_message(value: Any) -> Any:
    """Return ``value`` as it travels; plain values and dataclasses of them are unchanged.

    Raises:
        ConfigError: ``value`` cannot be sent.
    """
    if isinstance(value, dict):
        return {key: to_message(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(to_message(item) for item in value)
    for kind, message in _MESSAGES.items():
        if isinstance(value, kind):
            return message.of(value)
    return value


def from_message(value: Any) -> Any:
    """Undo `to_message`."""
    if isinstance(value, _ALL_MESSAGES):
        return value.result
    if isinstance(value, dict):
        return {key: from_message(item) for key, item in value.items()}
    # lists are unchanged: those that travel hold plain values
    if isinstance(value, tuple):
        return tuple(from_message(item) for item in value)
    return value


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One method that clients may call over the network."""

    name: str
    request: type[Any]
    """Dataclass with a field for each parameter. Fields have no defaults: the caller gives every
    argument, or the method's defaults would be in two places."""
    response: type[Any]
    """Dataclass with the result in the field ``value``."""

    def ask(self, arguments: dict[str, Any]) -> Any:
        """Return the request for ``arguments``.

        Raises:
            ConfigError: One of them cannot be sent.
        """
        return self.request(**{name: to_message(value) for name, value in arguments.items()})

    def arguments(self, request: Any) -> dict[str, Any]:
        """Return the arguments of a request that arrived.

        Raises:
            ProtocolError: A tensor has a type that cannot travel.
        """
        # not `dataclasses.asdict`, which copies arrays and turns nested dataclasses into dicts
        return {name: from_message(value) for name, value in vars(request).items()}

    def respond(self, result: Any) -> Any:
        """Return the response for the method's result."""
        kind = typing.get_type_hints(self.response)["value"]
        # messages for values that do not tell their kind: a book may be a plain tensor or None
        encode = kind.of if kind in BY_ANNOTATION else to_message
        return self.response(encode(result))

    def result(self, response: Any) -> Any:
        """Return the method's result from a response."""
        return from_message(response.value)


def calls_of(server: type[Any]) -> dict[str, Call]:
    """Return a `Call` for each abstract method, by name; annotations type the messages."""
    names = sorted(server.__abstractmethods__)
    return {name: _call(name, getattr(server, name)) for name in names}


def _call(name: str, method: Callable[..., Any]) -> Call:
    hints = typing.get_type_hints(method, include_extras=True)
    wire = {field: wire_type(hint) for field, hint in hints.items()}
    answer = wire.pop("return")
    title = "".join(word.capitalize() for word in name.split("_"))
    return Call(
        name,
        make_dataclass(f"{title}Request", wire.items(), frozen=True),
        make_dataclass(f"{title}Response", [("value", answer)], frozen=True),
    )
