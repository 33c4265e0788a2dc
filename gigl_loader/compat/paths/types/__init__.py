"""GiGL's ``gigl.types``."""
