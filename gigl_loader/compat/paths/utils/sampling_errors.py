"""GiGL's ``gigl.distributed.utils.sampling_errors``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.utils.sampling_errors")
