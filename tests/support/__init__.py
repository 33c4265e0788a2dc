"""What tests share: a simulated cluster, and processes that start without imports."""
