from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_task import build_dataset as build_dataset
from gigl_loader.compat.gigl_task import (
    build_dataset_from_task_config_uri as build_dataset_from_task_config_uri,
)

__getattr__ = advise("gigl_loader.dataset_factory")
