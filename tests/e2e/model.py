"""What random tests of a mount share: a run of steps against a reference that knows the outcome, and the shrinking of runs that fail to the steps that matter.

A step is a tuple (name, arguments...) that says all it does, so that any subset of a run is a run. Steps come from a seed. model_tree.py has those of a tree and
its bucket, model_bytes.py those of the bytes of a few files. Between them the worker is killed, now and at named crash points, the whole daemon too, and the store fails.
"""
import errno
import os
import random
import shutil
import threading
import time

from crash_file import POINTS, CrashFile
from mounts import ALARM, run

SPEED = 10  # of the daemon's clock
HANGS_S = 150
# What the store does, one of these until the next mount. Every error is one that Sluice retries, or hands on as EIO to a read.
FAULTS = [None, None, "op=put,prob=0.1,action=error:-EIO;op=delete,prob=0.1,action=error:-EIO",
          "op=put,prob=0.1,action=lost:-EIO;op=delete,prob=0.1,action=lost:-EIO;op=copy,prob=0.1,action=lost:-EIO",
          "op=get,prob=0.1,action=error:-EIO;op=head,prob=0.05,action=error:-EIO", "op=get,prob=0.2,action=short:1000",
          "op=part,prob=0.1,action=lost:-EIO;op=complete,prob=0.3,action=lost:-EIO;op=create,prob=0.2,action=error:-EIO",
          "op=list,prob=0.1,action=error:-EIO;op=put,action=delay:20ms"]
AT_START = ("recover_", "takeover_")
CRASHES = [p for p in POINTS if not p.startswith(AT_START)]


class Diverged(Exception):
    """The mount is not what it should be; text says where."""


def noise(size, seed):
    return random.Random(seed).randbytes(size)


def tried(call, *args, again=0):
    """("ok", value) or ("errno", name); EIO is tried again."""
    for i in range(again + 1):
        try:
            return "ok", call(*args)
        except OSError as e:
            if e.errno != errno.EIO or i == again:
                return "errno", errno.errorcode.get(e.errno, e.errno)
            time.sleep(0.02)


def brief(value):
    text = repr(value)
    return text if len(text) < 300 else f"{text[:200]}... ({len(text)} characters)"


def setting(rng, store):
    """Options of a mount. What waits for the store is not made to wait for files that the same program holds open, as an order would."""
    options = {"passthrough": rng.choice(("on", "off")), "close": rng.choice(("buffered",) * 5 + ("local", "remote")), "fsync": rng.choice(("local",) * 5 + ("remote",)),
               "order": rng.choice(("ancestor",) * 3 + ("none", "mount")),
               "open_fill": rng.choice(("32M", "64K", "0")), "prefetch": rng.choice(("on", "off")),
               "memory_cache": rng.choice(("0", "0", "16M")), "part_size": rng.choice(("64K", "256K", "5M")) if store.kind == "file" else "5M",
               "fault": rng.choice(FAULTS)}
    if "remote" in options.values():
        options["order"] = "none"
    return options


class Run:
    """Steps on one mount, which it owns with its store. A step is the method do_NAME, or what do_other() makes of it."""

    def __init__(self, mount, store, options):
        self.mount, self.store, self.options = mount, store, dict(options)
        self.crash = CrashFile(mount.base / "crash")
        self.deaths = 0
        mount.options.update(options, op_timeout="10m", watchdog="1h", settle="0s", free_space="1M")
        mount.env.update(SLUICE_CRASH_FILE=str(self.crash.path), SLUICE_CLOCK_SCALE=str(SPEED))
        self.start()

    def start(self, fault=None):
        if fault is not None:
            self.mount.options["fault"] = FAULTS[fault]
        self.mount.mount()

    @property
    def faulty(self):
        return bool(self.mount.options["fault"])

    def do(self, step):
        special = getattr(self, "do_" + step[0], None)
        if special:
            special(*step[1:])
        else:
            self.do_other(step)

    # ---- deaths ----

    def do_arm(self, point, nth):
        """The worker is to die at the nth passage of this crash point from now."""
        self.disarm()
        self.crash.arm(point, nth)

    def disarm(self):
        self.crash.disarm()
        self.deaths += self.crash.fired() is not None
        self.crash.reset()

    def do_takeover(self):
        self.disarm()
        self.mount.kill_worker()
        self.deaths += 1

    def do_kill(self, fault):
        """Supervisor and worker die at once."""
        self.disarm()
        self.before_kill()
        self.mount.kill9()
        self.let_go()
        self.start(fault)
        self.after_kill()

    def do_remount(self, fault):
        self.disarm()
        self.close_all()
        self.mount.umount()
        self.start(fault)
        self.do_compare()

    def before_kill(self):
        pass

    def let_go(self):
        """close_all() of what may be dead."""
        self.close_all()

    # ---- the store ----

    def published(self, path=""):
        done = run("wait", "--timeout", f"{100 * SPEED}s", self.mount.path / path, timeout=130, check=False)
        if done.returncode != 0:
            raise Diverged(f"wait: exit {done.returncode} {done.stderr}")

    def check_status(self):
        status = self.mount.status()
        bad = {k: status[k] for k in ("conflicts", "quarantined", "dirty_files") if status[k]}
        if bad:
            raise Diverged(f"status: {bad} with everything published")

    # ---- the end ----

    def check_log(self):
        self.disarm()
        lines = self.mount.log().splitlines()
        alarms = [line for line in lines if ALARM.search(line)]
        if alarms:
            raise Diverged(f"the log holds {alarms[:3]}")
        deaths = [line for line in lines if "another one takes over" in line]
        if len(deaths) > self.deaths:
            raise Diverged(f"the worker died {len(deaths)} times, {self.deaths} were asked for: {deaths[-3:]}")

    def last_words(self):
        log = [line for line in self.mount.log().splitlines() if " warn " in line or " err " in line]
        return "\n".join(log[-10:])

    def finish(self):
        """What the run said counts, not whether it ends well."""
        try:
            self.let_go()
            if self.mount.is_mounted():
                run("umount", self.mount.path, check=False)
        finally:
            if self.mount.is_mounted():
                self.mount.abort()
                self.mount.detach()
            self.store.remove()
            shutil.rmtree(self.mount.base, ignore_errors=True)


class Watch:
    """Cuts off a mount in which a step hangs: the call then ends with an error."""

    def __init__(self, r):
        self.run, self.over, self.step_since = r, threading.Event(), time.monotonic()
        self.thread = threading.Thread(target=self.main, daemon=True)
        self.thread.start()

    def main(self):
        while not self.over.wait(5):
            if time.monotonic() - self.step_since > HANGS_S:
                self.run.mount.abort()

    def end(self):
        self.over.set()
        self.thread.join()


def attempt(make_run, steps):
    """None, or (number of the step that failed, what it said)."""
    r = make_run()
    watch = Watch(r)
    try:
        for i, step in enumerate([*steps, None]):
            watch.step_since = time.monotonic()
            try:
                if step:
                    r.do(step)
                else:
                    r.check_log()
            except Exception as e:  # noqa: BLE001 - whatever a step says
                keep(r)
                return min(i, len(steps) - 1), f"step {i} {step or 'the end'}: {type(e).__name__}: {e}\n{r.last_words()}"
        return None
    finally:
        watch.end()
        r.finish()


def keep(r):
    """What is left of a run that failed, for who asks for it by SLUICE_MODEL_KEEP=DIR."""
    where = os.environ.get("SLUICE_MODEL_KEEP")
    if where:
        to = os.path.join(where, r.mount.base.name)
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        shutil.copy(r.mount.log_path, to)
        shutil.copytree(r.mount.cache, to + "/cache", ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("*.sock", "ctl*"))


def shrink(make_run, steps, seconds):
    """The fewest steps found, within this time, that fail still (delta debugging)."""
    until = time.monotonic() + seconds
    pieces = 2
    while len(steps) > 1 and time.monotonic() < until:
        length = max(1, len(steps) // pieces)
        for start in range(0, len(steps), length):
            fewer = steps[:start] + steps[start + length:]
            bad = attempt(make_run, fewer) if fewer and time.monotonic() < until else None
            if bad:
                steps = fewer[:bad[0] + 1]
                pieces = max(2, pieces - 1)
                break
        else:
            if length == 1:
                break
            pieces = min(len(steps), pieces * 2)
    return steps


def check(make_run, steps, shrink_seconds):
    bad = attempt(make_run, steps)
    if not bad:
        return
    print(bad[1], flush=True)
    fewer = shrink(make_run, steps[:bad[0] + 1], shrink_seconds)
    text = "\n".join(f"    {s!r}," for s in fewer)
    raise AssertionError(f"{bad[1]}\nshrunk to {len(fewer)} steps:\n[\n{text}\n]\nwhich say: {attempt(make_run, fewer)}")
