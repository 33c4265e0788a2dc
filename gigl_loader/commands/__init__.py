"""The verbs of `gigl-loader`, a module for each; `gigl_loader.commands.cli` is the door."""
