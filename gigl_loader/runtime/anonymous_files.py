"""Anonymous files (``memfd``), in which all shared memory lies; workers import this."""

import errno
import os

from gigl_loader.errors import ResourceError

_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def new_memfd(name: str, *, huge_pages: bool = False) -> int:
    """Return the descriptor of a new anonymous file without bytes.

    Args:
        name: Shown in ``/proc``.
        huge_pages: Of the pages that the system set aside.

    Raises:
        ResourceError: The system has no such call, or a sandbox refuses it.
        OSError: A limit, such as that of open files; or no huge pages.
    """
    try:
        flags = os.MFD_CLOEXEC | (os.MFD_HUGETLB if huge_pages else 0)
        return os.memfd_create(name, flags)
    except AttributeError as error:  # not Linux, or built for a C library without it
        raise ResourceError(errno.ENOSYS, _text("this Python has none")) from error
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise ResourceError(error.errno, _text(os.strerror(error.errno))) from error


def _text(reason: str) -> str:
    return (
        f"no shared memory can be made here: memfd_create: {reason}. Graphs and batches lie in it: "
        "run on Linux, with a seccomp profile of the container or sandbox that allows "
        "memfd_create, as Docker's own does; `gigl-loader diagnose` tries it"
    )
