from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import raise_if_sampling_error as raise_if_sampling_error

__getattr__ = advise("gigl_loader.utils.sampling_errors")
