"""Samplers in worker processes: started, fed, watched, replaced, stopped.

Face: `producer`, `rendezvous`, `job_turns`, `schedule`, `supervisor`.
Must not know: who takes the batches.
"""
