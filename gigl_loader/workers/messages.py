"""The messages between a trainer, its supervisor and its workers: tuples that begin with a name.

::

    trainer -> worker      PEERS, GENERATION, TASK, STOP
    worker -> trainer      READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING,
                           UNHEARD before an ERROR: a worker of another rank did not answer;
                           DRAWN before a BATCH where rows are cached
    supervisor -> trainer  READY (once), EXITED per worker
"""

PEERS, GENERATION, TASK, STOP = "peers", "generation", "task", "stop"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, UNHEARD, EXITED, DRAWN = "lingering", "unheard", "exited", "drawn"
