"""What a measurement is: running the client program, CPU seconds and memory of a daemon, the page cache, a memory limit."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pages

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("SLUICE_BUILD", ROOT / "build"))
SLUICE = os.environ.get("SLUICE_BIN", str(BUILD / "tools/sluice"))
IO = str(BUILD / "tests/bench/bench_io")
DELAY = str(BUILD / "tests/bench/bench_delay")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TIMEOUT = 900  # seconds of one piece of work
TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A measurement that did not work; its text goes into the cell."""


def run(*args, timeout=TIMEOUT, **kw):
    """A command that must succeed; its output as text."""
    args = [str(a) for a in args]
    try:
        done = subprocess.run(args, timeout=timeout, stdin=kw.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", check=False, **kw)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"{args[0]} {args[1]}: no end after {timeout} s") from e
    if done.returncode != 0:
        raise Failed(f"{pathlib.Path(args[0]).name} {args[1]}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def io(*args, prefix=(), **kw):
    """One command of io.c: a dict with seconds, client_cpu, bytes and files."""
    return json.loads(run(*prefix, IO, *args, **kw))


def program(*args, stdout, env=None):
    """Times a whole program that is not ours, such as ls; its output goes to the file stdout."""
    with open(stdout, "wb") as out:
        cpu, start = children_cpu(), time.monotonic()
        p = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=env)
        try:
            _, err = p.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as e:
            p.kill()
            raise Failed(f"{args[0]}: no end after {TIMEOUT} s") from e
        seconds = time.monotonic() - start
    if p.returncode != 0:
        raise Failed(f"{args[0]}: exit {p.returncode}: {err.decode(errors='replace').strip()[-300:]}")
    return {"seconds": seconds, "client_cpu": round(children_cpu() - cpu, 3)}


def is_mounted(path):
    """Asks the kernel's table: looking at the path would fail or hang where a daemon has died or hangs."""
    return str(path) in pages.mount_points()


def gone(pid, seconds):
    """Whether a process ends within that time."""
    until = time.monotonic() + seconds
    while pathlib.Path(f"/proc/{pid}").exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def children_cpu():
    """CPU seconds of all child processes that have ended."""
    t = os.times()
    return t.children_user + t.children_system


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def memory_mib(pids, field):
    """Sum of VmRSS (now) or VmHWM (peak since reset_peak)."""
    kib = 0
    for pid in pids:
        try:
            for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    kib += int(line.split()[1])
        except FileNotFoundError:
            pass
    return round(kib / 1024, 1)


def reset_peak(pids):
    for pid in pids:
        try:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            pass


def measured(side, work):
    """work() gives a dict with at least seconds (or a value of another unit); this adds what the side's daemon spent and its mode."""
    pids = side.pids()
    side.begin()
    pages.machine.settle()
    reset_peak(pids)
    cpu = cpu_seconds(pids)
    sample = dict(work())
    if pids:
        sample["daemon_cpu"] = round(cpu_seconds(pids) - cpu, 3)
        sample["daemon_peak_mib"] = memory_mib(pids, "VmHWM")
    sample["mode"] = side.mode(sample)
    return sample


class MemoryLimit:
    """A cgroup of these processes, and of those started with the prefix that `with` gives, that gets at most so many bytes of memory,
    page cache included. Version 2 or 1."""

    def __init__(self, limit, pids):
        self.limit, self.pids = limit, pids
        self.group = self.parent = None

    def __enter__(self):
        v2, v1 = pathlib.Path("/sys/fs/cgroup/cgroup.controllers"), pathlib.Path("/sys/fs/cgroup/memory")
        if v2.exists() and "memory" in v2.read_text().split():
            (v2.parent / "cgroup.subtree_control").write_text("+memory")
            self.parent, knob = v2.parent, "memory.max"
        elif v1.is_dir():
            self.parent, knob = v1, "memory.limit_in_bytes"
        else:
            raise Failed("no cgroup memory controller")
        self.group = self.parent / f"sluice-bench-{os.getpid()}"
        self.group.mkdir()
        (self.group / knob).write_text(str(self.limit))
        for pid in self.pids:
            (self.group / "cgroup.procs").write_text(str(pid))
        return ["sh", "-c", f'echo $$ >{self.group}/cgroup.procs && exec "$@"', "sh"]

    def __exit__(self, *_):
        for pid in self.pids:
            with contextlib.suppress(OSError):
                (self.parent / "cgroup.procs").write_text(str(pid))
        for _ in range(50):
            try:
                self.group.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def say(text):
    print(f"== {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
