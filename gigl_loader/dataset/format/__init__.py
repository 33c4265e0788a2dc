"""A partition as files: our mapped format, and graphlearn-torch's."""
