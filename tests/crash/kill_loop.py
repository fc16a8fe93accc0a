#!/usr/bin/python3
"""Kills a mount again and again while programs use it, and looks at everything after each time.

usage: kill_loop.py [--cycles N] [--seed S] [--dir DIR] [--points NAMES]

A cycle ends the worker (programs must notice nothing), or supervisor and worker at once (then the next mount must have all that was acknowledged), at a random moment
or at a named crash point (meta/base/crash_points.def). It counts only if something was unpublished then. An even seed is with passthrough, an odd one without. The last line
sums up; exit 1 at the first thing that is wrong, with the seed; what is left of the mount stays in DIR then. From 300 cycles on it is wrong too if a point that these programs
can reach was never passed, or if it died at fewer than 30. Exit 77: SLUICE_DEADLINE, in seconds since 1970, came before the last cycle.
"""
import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
import mounts  # noqa: E402
import stores  # noqa: E402
from crash_file import POINTS, CrashFile  # noqa: E402
from programs import DIRECTORY, Link, Mixed, Node, Saver, digest  # noqa: E402

AT_START = [p for p in POINTS if p.startswith(("recover_", "takeover_"))]
# There is nobody else whose objects ours could meet, room for all, and no other bucket or disk; tests/e2e/test_crash_windows.py and test_lost_disks.py die at these.
BEYOND = [p for p in POINTS if p.startswith(("conflict_", "disk_", "punch_", "link_", "note_"))]
ENOUGH = 300
DEATHS = 30  # points at which it is to have died by then
FAULTS = "op=put,prob=0.3,action=delay:15ms;op=part,prob=0.3,action=delay:15ms;op=head,prob=0.3,action=delay:10ms;op=copy,prob=0.3,action=delay:15ms;op=delete,prob=0.3,action=delay:15ms"
SPEED = 10
DEADLINE = float(os.environ.get("SLUICE_DEADLINE") or 0)  # no cycle begins after it
CUT_SHORT = 77  # exit status: nothing wrong until then
IDLE = 90  # seconds until all is published and nothing is left behind: machine and disk may be busy with other things


class Loop:
    def __init__(self, base, seed, points):
        self.base, self.seed, self.random, self.points = base, seed, random.Random(seed), points
        self.began = time.monotonic()
        self.store = stores.FileStore(base / "lake")
        self.crash = CrashFile(base / "crash")
        self.m = mounts.Mount(self.store, base / "m", part_size="128K", settle="0s", watchdog="1h", op_timeout="20m", hold_delay="3s", fault=FAULTS,
                              passthrough=("on", "off")[seed % 2], cache_size="256M", free_space="1M",
                              log_level="debug" if os.environ.get("SLUICE_CRASH_DEBUG") else "info")
        self.m.env.update(SLUICE_CRASH_FILE=str(self.crash.path), SLUICE_CLOCK_SCALE=str(SPEED))
        self.m.program = mounts.POINTS
        self.m.mount()
        top = self.m.path
        self.programs = [Mixed(top, "a", seed * 10 + 1), Mixed(top, "b", seed * 10 + 2), Saver(top, "job", seed * 10 + 3)]
        for p in self.programs:
            p.dir.mkdir()
        self.saver = self.programs[2]
        self.seen = {}  # object -> (its stat, digest): hashed once
        self.fired = dict.fromkeys(POINTS, 0)
        self.counted = self.cycles = 0
        self.uploads_gone = 0.0

    # ---- the bucket ----

    def get(self, key):
        try:
            return self.store.get(key)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def objects(self):
        """key -> digest of its bytes."""
        found = {}
        for key in self.store.list():
            path = self.store.root / key
            try:
                st = path.stat()
                mark = (st.st_ino, st.st_mtime_ns, st.st_size)
                if self.seen.get(key, (None,))[0] != mark:
                    self.seen[key] = (mark, digest(path.read_bytes()))
            except FileNotFoundError:
                continue
            found[key] = self.seen[key][1]
        return found

    def check_bucket(self):
        """Only closed content, and no marker before its data."""
        closed = {p.name: p for p in self.programs}
        for key, found in self.objects().items():
            top = key.split("/")[0]
            if top in closed:
                assert found in closed[top].closed, f"object {key} holds what was never closed ({(self.store.root / key).stat().st_size} bytes)"
        self.saver.check_bucket(self.get)

    def check_log(self):
        for line in self.m.log().splitlines():
            key = re.search(r"changed elsewhere.*key='([^']*)'", line)
            for p in self.programs:
                if key and key[1].startswith(p.name + "/"):
                    p.tell([key[1][len(p.name) + 1:]])
            assert not key, f"our own object was taken for somebody else's: {line}"
            assert not mounts.ALARM.search(line), line

    # ---- one cycle ----

    def choose(self):
        """(point or None, nth, both)."""
        both = self.random.random() < 0.5
        if self.random.random() < 0.4:
            return None, 1, both
        least = min(self.fired[p] for p in self.points)
        point = self.random.choice([p for p in self.points if self.fired[p] <= least + 1] if self.random.random() < 0.5 else self.points)
        if point.startswith("recover_o") or point == "recover_index":
            both = True
        elif point.startswith("takeover_"):
            both = False
        return point, self.random.choice((1, 1, 2, 3, 5)) if point not in AT_START else 1, both

    def start_programs(self):
        self.stop, self.dying = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=p.run, args=(self.stop, self.dying), daemon=True) for p in self.programs]
        for t in self.threads:
            t.start()

    def end_programs(self):
        self.stop.set()
        for t in self.threads:
            t.join(60)
        assert not any(t.is_alive() for t in self.threads), "a program hangs: " + ", ".join(p.last for p in self.programs)
        failures = [p.failure for p in self.programs if p.failure]
        assert not failures, "; ".join(failures)

    def worker(self):
        return self.m.status()

    def check_nobody_else(self):
        """Nobody but this mount is at the bucket: nothing in it may be taken for somebody else's."""
        rows = [line.split() for line in (self.m.path / ".stats").read_text().splitlines()]
        found = [n for name, n in (row for row in rows if len(row) == 2) if name == "sluice_remote_changes_total"]
        assert found == ["0"], f"our own objects were taken for somebody else's: {found}"

    def wait_fired(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.crash.fired():
                return True
            time.sleep(0.002)
        return False

    def kill(self, point, nth, both):
        """What the mount said of itself just before."""
        if not point:
            time.sleep(self.random.uniform(0, 0.15))
        status = self.worker()
        self.check_nobody_else()
        if both:
            self.dying.set()
        at_start = point in AT_START
        if point:
            self.crash.arm(point, nth, both and not at_start)
        if point and not at_start and self.wait_fired(0.5):
            if both:
                assert mounts.eventually(lambda: mounts.is_gone(status["pid"]) and mounts.is_gone(status["supervisor_pid"]), 10, 0.002)
            return status
        if point and not at_start:
            self.crash.disarm()
        if both:
            for pid in (status["supervisor_pid"], status["pid"]):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            assert mounts.eventually(lambda: mounts.is_gone(status["pid"]) and mounts.is_gone(status["supervisor_pid"]), 10, 0.002)
        else:
            try:
                os.kill(status["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
        return status

    def intents(self):
        return sum(1 for f in (self.m.cache / "data").glob("*/*") if "user.sluice.intent" in os.listxattr(f))

    def mount_again(self, at_start):
        self.m.detach()
        for _ in range(3):
            try:
                self.m.mount()
                return
            except AssertionError as e:
                assert at_start and self.crash.fired(), str(e)  # it died while it started, as told to
                self.m.detach()
                at_start = False
        raise AssertionError("cannot be mounted")

    def cycle(self):
        point, nth, both = self.choose()
        self.now = f"cycle {self.cycles} at {point or 'random'}:{nth} {'both' if both else 'worker'}"
        self.start_programs()
        time.sleep(self.random.uniform(0.02, 0.12))
        dirty = self.kill(point, nth, both)["dirty_files"]
        if both:
            self.end_programs()
            dirty = self.intents()
            self.check_bucket()
            self.mount_again(point in AT_START)
            for p in self.programs:
                p.settle()
        else:
            time.sleep(self.random.uniform(0, 0.05))
            self.end_programs()
        if point in AT_START:
            self.crash.disarm()
        fired = self.crash.fired()
        if fired:
            self.fired[fired] += 1
        self.crash.reset()
        for p in self.programs:
            p.check()
        self.check_bucket()
        self.check_log()
        self.check_nobody_else()
        self.cycles += 1
        self.counted += dirty > 0

    # ---- now and then ----

    def drain(self):
        for p in self.programs:
            for rel in [x for x in p.names if x.endswith((".tmp", ".new"))]:
                p.unlink(rel)
        done = mounts.run("wait", "--timeout", f"{IDLE * SPEED}s", self.m.path, timeout=IDLE + 30, check=False, program=self.m.program)
        assert done.returncode == 0, f"not all is published: {done.stdout}{done.stderr}"

    def uploads(self):
        """The files of each multipart upload that has parts."""
        found = {}
        for u in (self.store.root / ".sluice-tmp").glob("mpu-*"):
            try:
                files = sorted(os.listdir(u))
            except FileNotFoundError:
                continue
            if any(f.startswith("p") for f in files):
                found[u.name] = files
        return found

    def missed(self):
        """Points that were to be passed and never were."""
        passed, passthrough = self.crash.passed(), self.worker()["passthrough"]
        return [p for p in POINTS if not passed[p] and p not in BEYOND and (passthrough or p != "backing_given")]

    def check_points(self):
        missed, deaths = self.missed(), sum(n > 0 for n in self.fired.values())
        assert not missed, f"never passed: {' '.join(missed)}"
        assert deaths >= DEATHS, f"died at {deaths} points only"

    def wait_uploads(self):
        """Those of files that are gone end behind: after the disk has the removal, and the kernel has said that it does not know the file."""
        began = time.monotonic()
        assert mounts.eventually(lambda: not self.uploads(), IDLE), f"multipart uploads were left behind: {self.uploads()}"
        self.uploads_gone = max(self.uploads_gone, time.monotonic() - began)

    def check_all(self):
        """Drained: the bucket is the model; so is a new mount with an empty cache, and nothing is left over."""
        self.now = f"check after cycle {self.cycles}"
        self.drain()
        want, links, empty = {}, set(), set()
        for p in self.programs:
            for rel, x in p.names.items():
                key = f"{p.name}/{rel}"
                if isinstance(x, Node):
                    want[key] = digest(x.data)
                elif isinstance(x, Link):
                    want[key] = digest(b"")
                elif p.below(rel) == [rel]:
                    empty.add(key)
        found = self.objects()
        bad = [k for k in sorted(found.keys() | want.keys()) if found.get(k) != want.get(k)]
        assert not bad, f"the bucket is not what was written: {[(k, k in found, k in want) for k in bad[:8]]}"
        missing = [k for k in empty if not (self.store.root / k).is_dir()]
        assert not missing, f"empty directories are not in the bucket: {missing}"
        status = self.worker()
        assert status["conflicts"] == 0 and status["quarantined"] == 0, f"{status['conflicts']} conflicts, {status['quarantined']} quarantined"
        self.wait_uploads()
        self.m.umount()
        done = mounts.run("fsck", self.m.cache, check=False, program=self.m.program)
        assert done.returncode == 0, f"fsck: {done.stdout}{done.stderr}"
        shutil.rmtree(self.m.cache)
        self.m.mount()
        for p in self.programs:
            p.forget_links()
            p.check()

    def out_of_time(self):
        return DEADLINE and time.time() > DEADLINE

    def run(self, cycles, every):
        try:
            while self.counted < cycles and not self.out_of_time():
                self.cycle()
                if self.cycles % every == 0:
                    self.check_all()
                    print(f"seed {self.seed}: {self.counted} of {cycles} kills, {time.monotonic() - self.began:.0f} s", flush=True)
                assert self.cycles < 3 * cycles + 50, "most kills found nothing unpublished"
            self.check_all()
            if self.counted >= ENOUGH and self.points == POINTS:
                self.check_points()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as e:
            return f"{self.now}: {e}"
        finally:
            self.stop.set()
        return None


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--cycles", type=int, default=100)
    args.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    args.add_argument("--every", type=int, default=25, help="cycles between full checks")
    args.add_argument("--dir")
    args.add_argument("--points", help="comma-separated; default: all")
    args = args.parse_args()
    base = pathlib.Path(args.dir or tempfile.mkdtemp(prefix="sluice-crash."))
    base.mkdir(exist_ok=True)
    loop = Loop(base, args.seed, args.points.split(",") if args.points else POINTS)
    problem = loop.run(args.cycles, args.every)
    passed = loop.crash.passed()
    fired = {p: n for p, n in loop.fired.items() if n}
    print("fired:", " ".join(f"{p}={n}" for p, n in sorted(fired.items())))
    print("never passed:", " ".join(p for p in POINTS if not passed[p]) or "-", "| never fired:",
          " ".join(p for p in POINTS if p not in fired) or "-")
    print(f"seed {args.seed}: {loop.counted} kills counted of {loop.cycles}, {sum(p.n_steps for p in loop.programs)} steps of programs, "
          f"{time.monotonic() - loop.began:.0f} s, uploads gone after {loop.uploads_gone:.1f} s at most: {'FAILED ' + problem if problem else 'nothing lost'}")
    if problem:
        print(f"what is left: {base}")
        return 1
    loop.m.finish()
    shutil.rmtree(base)
    return 0 if loop.counted >= args.cycles else CUT_SHORT


if __name__ == "__main__":
    sys.exit(main())
