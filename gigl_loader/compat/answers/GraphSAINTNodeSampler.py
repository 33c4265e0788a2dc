from gigl_loader.compat.advice import refuse

refuse(__name__)
