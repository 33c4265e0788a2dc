"""The keywords of loaders: checked as a whole before anything is started."""
