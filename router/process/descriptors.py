"""Room for descriptors, made before anybody waits for it.

Linux lets the table of a process's open files grow by doubling, and a process with threads then waits for all cores to
take note (expand_files, synchronize_rcu): milliseconds, and on a starved machine seconds, in the middle of a burst of
connections. The table never shrinks, so one high descriptor at the start makes the room for good.
"""

from __future__ import annotations

import fcntl
import os
import resource

ROOM = 8192
"""Connections of clients and to engines, and what else is open; half a MiB at most."""


def make_room(most: int = ROOM) -> int:
    """The table has room for so many descriptors, or for as many as the process may have; returns how many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = most if soft == resource.RLIM_INFINITY else min(most, soft)
    with open(os.devnull, "rb") as null:
        # F_DUPFD takes the lowest free one from there on, so that none in use is closed.
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, room - 1))
    return room
