from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import get_available_device as get_available_device

__getattr__ = advise("gigl_loader.utils.device")
