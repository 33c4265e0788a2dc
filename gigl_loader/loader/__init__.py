"""What users import: loaders, and the state of their epochs."""
