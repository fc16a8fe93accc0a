"""Groups of processes with a limit, of version 2 or 1 of cgroups, whichever has the controller here."""
import contextlib
import os
import pathlib

import pytest
from mounts import eventually

TOP = pathlib.Path("/sys/fs/cgroup")
KNOBS = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max", "pids.max")}  # version 2, 1
EVENTS = ("memory.events", "memory.oom_control", "pids.events")


class Group:
    def __init__(self, parent, knob):
        self.path = parent / f"sluice-test-{os.getpid()}"
        self.knob = self.path / knob
        self.path.mkdir()

    def limit(self, value, pids=()):
        """So much for those, and what they start, together; None: as much as there is."""
        self.knob.write_text("max" if value is None else str(value))
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))

    def count(self, event):
        path = next(path for path in map(self.path.joinpath, EVENTS) if path.exists())
        return int(dict(line.split() for line in path.read_text().splitlines())[event])

    def killed(self):
        """How many processes the kernel ended for want of memory."""
        return self.count("oom_kill")

    def remove(self):
        for pid in (self.path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self.path.parent / "cgroup.procs").write_text(pid)
        assert eventually(self._removed, 10)

    def _removed(self):
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True


def make(controller):
    """None: there is no such controller that may be used."""
    v2, v1 = TOP / "cgroup.controllers", TOP / controller
    try:
        if v2.exists() and controller in v2.read_text().split():
            (TOP / "cgroup.subtree_control").write_text(f"+{controller}")
            return Group(TOP, KNOBS[controller][0])
        return Group(v1, KNOBS[controller][1]) if v1.is_dir() else None
    except OSError:
        return None


@contextlib.contextmanager
def group(controller):
    """A group of the test's own, or the test is skipped."""
    made = make(controller)
    if not made:
        pytest.skip(f"no {controller} controller of cgroups that may be used")
    try:
        yield made
    finally:
        made.remove()
