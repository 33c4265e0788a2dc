from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.utils.partition_book")
