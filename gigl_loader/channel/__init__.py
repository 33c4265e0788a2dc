"""Ways for sample messages to reach a loader; each receive has a deadline and a liveness check."""
