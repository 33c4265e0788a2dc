"""What `gigl-loader VERB` does, a module for each verb; `gigl_loader.cli` is the door."""
