"""What tests share is imported as ``tests.<folder>.<module>``."""
