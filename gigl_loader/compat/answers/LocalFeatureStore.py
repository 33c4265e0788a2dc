"""A name of another library; importing it says what takes its place."""

from gigl_loader.compat.advice import refuse

refuse(__name__)
