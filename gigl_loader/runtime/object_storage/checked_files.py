"""Notes of a folder's files whose bytes were compared with their checksums, one for each file.

::

    .checked/NAME               size and times of NAME, as they were then

Whoever writes to a file changes its times, so its note no longer fits, and it is compared again.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

_FOLDER = ".checked"


def note_as_checked(folder: Path, name: str) -> None:
    """Note that the bytes of a file below ``folder`` match their checksums."""
    note = folder / _FOLDER / name
    # a file without a note is compared once more
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_name(f"{note.name}.{os.getpid()}.tmp")
        draft.write_text(_stamp(folder / name))
        os.replace(draft, note)


def is_checked(folder: Path, name: str) -> bool:
    """Return whether a file is there and is as it was when its bytes were compared."""
    try:
        return (folder / _FOLDER / name).read_text() == _stamp(folder / name)
    except OSError:
        return False


def forget_checks(folder: Path) -> None:
    """Let all files of ``folder`` be compared again before they are used."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _stamp(path: Path) -> str:
    status = path.stat()
    # ctime, too: no program can set it
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
