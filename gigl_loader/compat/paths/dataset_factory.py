"""GiGL's ``gigl.distributed.dataset_factory``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dataset_factory")
