from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_range_partitioner")
