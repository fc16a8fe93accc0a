"""A hundred deaths and twenty upgrades later nothing of the workers that were is left: not in the supervisor, not in the kernel."""
import os
import pathlib
import threading

import pytest
from crash_file import CrashFile
from mounts import MIB, POINTS, QUICK, eventually, run, sh

N_KILLS, N_UPGRADES = (10, 2) if QUICK else (100, 20)
KEPT = 6  # files that stay open at a time
SLACK = 4 * MIB


def held_by(pid):
    """What a process has open, and how many threads it has."""
    fds = sorted(os.readlink(fd).split(":")[0] for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    return fds, len(list(pathlib.Path(f"/proc/{pid}/task").iterdir()))


class Opener:
    """Makes and removes files without end, so that workers die at any step of it."""

    def __init__(self, path):
        self.path, self.stop, self.error, self.n = path, threading.Event(), None, 0
        self.thread = threading.Thread(target=self.main, daemon=True)
        self.thread.start()

    def main(self):
        try:
            while not self.stop.is_set():
                name = self.path / f"o{self.n}"
                with open(name, "wb", buffering=0) as f:
                    f.write(b"o" * MIB)
                name.unlink()
                self.n += 1
        except OSError as e:
            self.error = e

    def end(self):
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive() and self.error is None and self.n > 0, self.error


def test_nothing_is_left_of_workers_that_were(make_mount):
    m = make_mount(free_space="16M", settle="0s")
    if not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    (m.path / "busy").mkdir()
    m.kill_worker()
    m.wait()
    supervisor = m.status()["supervisor_pid"]
    held, opener, kept = held_by(supervisor), Opener(m.path / "busy"), []
    for i in range(N_KILLS):
        f = open(m.path / f"f{i}", "w+b", buffering=0)
        f.write(os.urandom(4 * MIB))
        kept.append(f)
        if len(kept) > KEPT:
            done = kept.pop(0)
            os.unlink(m.path / f"f{i - KEPT}")
            done.close()
        m.kill_worker()
        if i % (N_KILLS // N_UPGRADES) == 0:
            run("upgrade", m.path)
    opener.end()
    for f in kept:
        f.close()
        os.unlink(m.path / f"f{N_KILLS - len(kept) + kept.index(f)}")
    m.wait()
    assert held_by(supervisor) == held


def hidden(path):
    """Bytes in use on a disk that no name on it tells of."""
    os.sync()
    fs = os.statvfs(path)
    named = int(sh(f"du -s -B1 {path}").stdout.split()[0])
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize - named


def test_backing_ids_that_nobody_recorded_are_closed(make_mount, base):
    """Each would keep the blocks of its file, also of one that is removed."""
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    sh(f"truncate -s 1G {base}/disk && mkfs.ext4 -q {base}/disk && mkdir {base}/small && mount -o loop {base}/disk {base}/small")
    try:
        crash = CrashFile(base / "crash")
        m = make_mount(start=False, cache_dir=base / "small/cache", free_space="16M", settle="0s")
        m.program, m.env["SLUICE_CRASH_FILE"] = POINTS, str(crash.path)
        m.mount()
        if not m.status()["passthrough"]:
            pytest.skip("no passthrough here")
        before = hidden(base / "small")
        for i in range(4):
            crash.arm("backing_given")
            with open(m.path / f"f{i}", "w+b", buffering=0) as f:
                f.write(os.urandom(8 * MIB))
            assert crash.fired() == "backing_given", "nobody died"
            os.unlink(m.path / f"f{i}")
        m.wait()
        assert eventually(lambda: hidden(base / "small") < before + SLACK), (before, hidden(base / "small"))
        m.umount()
    finally:
        sh(f"umount {base}/small || umount -l {base}/small")
