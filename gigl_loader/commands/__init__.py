"""The verbs of `gigl-loader`, a module for each; `gigl_loader.cli` is the door."""
