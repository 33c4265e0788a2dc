"""The messages between a trainer, its supervisor and its workers: tuples that begin with a name.

::

    trainer -> supervisor  FORK (with the worker's socket), KILL
    supervisor -> trainer  FORKED, EXITED per worker
    trainer -> worker      the set-up and PLACE (once); PEERS, ATTEMPT, TASK, STOP,
                           SLOTS that are free, where no TASK is left to go along with
    worker -> trainer      READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING,
                           UNHEARD before an ERROR: a worker of another rank did not answer;
                           DRAWN before a BATCH where rows are cached

`DIED` is what the trainer's end of the sockets makes of the end of a worker.
"""

FORK, KILL, FORKED, EXITED = "fork", "kill", "forked", "exited"
PLACE, PEERS, ATTEMPT, TASK, STOP = "place", "peers", "attempt", "task", "stop"
SLOTS = "slots"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, UNHEARD, DRAWN, DIED = "lingering", "unheard", "drawn", "died"
