"""A mount under test and the sluice command. Every call has a timeout; nothing here waits for a hung mount."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.path.abspath(os.environ.get("SLUICE_BIN", str(ROOT / "build/tools/sluice")))
# A build with -Dtest_points=true, for tests that need a fast clock.
POINTS = os.path.abspath(os.environ.get("SLUICE_POINTS_BIN", str(ROOT / "build-points/tools/sluice")))
QUICK = bool(os.environ.get("SLUICE_QUICK"))
NIGHT = bool(os.environ.get("SLUICE_NIGHT"))
MIB = 1 << 20
# What a log must never hold: signs of a bug, signatures and tokens of requests, and secrets (Mount.secrets).
ALARM = re.compile(r"\bbug\b|assert|AddressSanitizer|ThreadSanitizer|runtime error:|LeakSanitizer|Segmentation|Signature=[0-9a-f]{16}|X-Amz-Security-Token[:=] ?\S", re.I)
SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
SECRET_SETTING = re.compile(r"^\s*(?:aws_secret_access_key|aws_session_token)\s*=\s*(\S+)", re.M)
SECRET_LEN_MIN = 12  # what is shorter may be a word like others


def run(*args, timeout=60, check=True, env=None, program=SLUICE, **kw):
    """The sluice command; the result has returncode, stdout, stderr as text."""
    full = dict(os.environ, **(env or {}))
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=timeout, env=full,
                          stdin=subprocess.DEVNULL, errors="replace", **kw)
    if check:
        assert done.returncode == 0, f"sluice {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def ask(mountpoint, request, timeout=60):
    """The lines that the daemon of a mount answers to one request (fs/ctl_proto.h), as the sluice command would get them; None where it has to be asked by the
    command instead: no daemon listens, or it ended meanwhile. Tests that look again and again need not start a program each time."""
    if os.geteuid() != 0:
        return None
    name = hashlib.sha256(str(mountpoint).encode()).hexdigest()[:16]
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(timeout)
            s.connect(f"/run/sluice/{name}.sock")
            s.sendall(json.dumps(request).encode() + b"\n")
            answer = b"".join(iter(lambda: s.recv(1 << 16), b""))
    except OSError:
        return None
    lines = [json.loads(line) for line in answer.splitlines() if line]
    done = lines.pop() if lines else {}
    return lines if done.get("event") == "done" and done.get("exit") == 0 else None


def sh(command, timeout=120, check=True, **kw):
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          errors="replace", **kw)
    if check:
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def eventually(what, seconds=30, step=0.1):
    """Waits until what() is true; its last value comes back."""
    until = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > until:
            return value
        time.sleep(step)


def in_thread(work):
    """Starts work; join() gives its result, or raises what it raised."""
    box = {}

    def main():
        try:
            box["result"] = work()
        except BaseException as e:  # handed to who joins
            box["error"] = e

    thread = threading.Thread(target=main, daemon=True)
    thread.start()

    def join(seconds=30):
        thread.join(seconds)
        assert not thread.is_alive(), "a program hangs"
        if "error" in box:
            raise box["error"]
        return box["result"]

    return join


# In a mount namespace of its own, where /dev/fuse is for everybody. $1: a directory of nobody's, $2: sluice.
AS_ROOT = """
set -e
mount -t tmpfs none "$1/dev"
mknod -m 666 "$1/dev/fuse" c 10 229 && mount --bind "$1/dev/fuse" /dev/fuse || exit 77
HOME=$1 XDG_RUNTIME_DIR=$1 exec setpriv --reuid 65534 --regid 65534 --clear-groups bash -c "$3" - "$1" "$2"
"""


def as_nobody(base, script):
    """Runs a bash script as a user without rights; $1: a directory of its own with lake, mnt and cache, $2: sluice. Exit 77: impossible here."""
    top = base / "nobody"
    for name in ("", "dev", "lake", "mnt", "cache"):
        (top / name).mkdir(0o700)
        os.chown(top / name, 65534, 65534)
    shutil.copy(SLUICE, top / "program")
    return subprocess.run(["unshare", "-m", "bash", "-c", AS_ROOT, "-", str(top), str(top / "program"), script], text=True,
                          capture_output=True, timeout=120, stdin=subprocess.DEVNULL, check=False)


def is_gone(pid):
    """Ended; a zombie counts as that."""
    try:
        return not pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def kill_all(pids):
    """In this order: a supervisor before the worker that it would replace."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: all(map(is_gone, pids)), 10)


class Mount:
    """One mount point with its cache and log, mounted and unmounted at will. Options are long options: cache_size="64M"."""

    def __init__(self, store, base, source=None, **options):
        self.store, self.base = store, pathlib.Path(base)
        self.source = source or store.source
        self.path = self.base / "mnt"
        self.cache = self.base / "cache"
        self.log_path = self.base / "log"
        self.env = dict(store.env())
        self.program = SLUICE
        self.options = dict(options)
        self.base.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)

    def arguments(self, extra=None):
        options = {"cache_dir": self.cache, "log_file": self.log_path, "metadata_ttl": "1s", "negative_ttl": "1s"}
        if os.environ.get("SLUICE_PASSTHROUGH"):
            options["passthrough"] = os.environ["SLUICE_PASSTHROUGH"]
        if self.store.endpoint:
            options["endpoint_url"] = self.store.endpoint
        options.update(self.options, **(extra or {}))
        args = ["mount", self.source, self.path]
        for name, value in options.items():
            if value is None or value is False:
                continue
            name = "--" + name.replace("_", "-")
            args += [name] if value is True else [name, value]
        return args

    def mount(self, **extra):
        run(*self.arguments(extra), env=self.env, program=self.program)
        assert self.is_mounted()
        return self

    def is_mounted(self):
        mounts = pathlib.Path("/proc/self/mountinfo").read_text()
        return any(line.split()[4] == str(self.path) for line in mounts.splitlines())

    def umount(self, timeout=60):
        run("umount", self.path, timeout=timeout)
        assert not self.is_mounted()

    def remount(self, **extra):
        self.umount()
        return self.mount(**extra)

    def status(self):
        lines = ask(self.path, {"verb": "status"})
        return lines[0] if lines else json.loads(run("status", "--json", self.path, program=self.program).stdout)

    def info(self, path):
        name = os.path.relpath(os.path.normpath(self.path / path), self.path)
        lines = ask(self.path, {"verb": "info", "paths": ["" if name == "." else name]})
        return lines[0] if lines else json.loads(run("info", "--json", self.path / path).stdout.strip().splitlines()[0])

    def wait(self, path="", timeout=120):
        """Until everything under path is published and verified."""
        run("wait", "--timeout", f"{timeout}s", self.path / path, timeout=timeout + 30)

    def pids(self):
        """Of the daemon's processes: the supervisor, if there is one, and the worker."""
        status = self.status()
        return [pid for pid in (status["supervisor_pid"], status["pid"]) if pid]

    def notifier(self):
        """The pid of who tells the kernel what it knows is out of date."""
        supervisor = self.status()["supervisor_pid"]
        children = pathlib.Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        names = {int(pid): pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
        return next(pid for pid, name in names.items() if name == "sluice-notify")

    def tells_late(self, work, seen):
        """What work, a command, did is seen once that has returned, though the kernel was told late."""
        notifier, before = self.notifier(), len(self.log())
        os.kill(notifier, signal.SIGSTOP)
        goes_on = threading.Timer(0.4, os.kill, (notifier, signal.SIGCONT))
        goes_on.start()
        work()
        right = seen()
        goes_on.join()
        assert right or "told late" in self.log()[before:]  # the timer was late: a second is the most that a command waits

    def kill(self):
        """The whole daemon dies at once: the mount is dead."""
        kill_all(self.pids())

    def kill_worker(self):
        """What serves dies at once, and the supervisor puts another one in its place. Its pid."""
        pid = self.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        return eventually(lambda: next((new for new in [self.status()["pid"]] if new != pid), None))

    def kill9(self):
        """The whole daemon dies at once; the dead mount is taken away."""
        self.kill()
        self.detach()

    def detach(self):
        while self.is_mounted():
            subprocess.run(["umount", "-l", self.path], timeout=20, check=False, capture_output=True)

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def secrets(self):
        """Those of the daemon's environment, and of the files that it or an option names."""
        env = {**os.environ, **self.env}
        found = {env.get(name, "") for name in SECRET_VARIABLES}
        keys = [env.get(name) for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE") if env.get(name)]
        for path in filter(os.path.isfile, keys):
            found |= set(SECRET_SETTING.findall(pathlib.Path(path).read_text(errors="replace")))
        events = self.options.get("events_secret_file")
        if events and os.path.isfile(events):
            found.add(pathlib.Path(events).read_text(errors="replace").strip())
        return {secret for secret in found if len(secret) >= SECRET_LEN_MIN}

    def abort(self):
        """Breaks the connection of a mount that does not answer."""
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            words = line.split()
            if words[4] == str(self.path):
                minor = words[2].split(":")[1]
                connection = pathlib.Path(f"/sys/fs/fuse/connections/{minor}/abort")
                if connection.exists():
                    connection.write_text("1")

    def finish(self):
        """Teardown: an unmount that must work, whatever happens no mount stays, and a clean log."""
        problem = None
        if self.is_mounted():
            try:
                run("umount", self.path, timeout=60)
            except (subprocess.TimeoutExpired, AssertionError) as e:
                problem = f"umount at the end failed: {e}"
                self.abort()
                self.detach()
        log, secrets = self.log(), self.secrets()
        alarms = [line for line in log.splitlines() if ALARM.search(line)]
        told = [line for line in log.splitlines() if any(secret in line for secret in secrets)]
        assert problem is None, problem
        assert not alarms, "the log holds:\n" + "\n".join(alarms[:20])
        assert not told, "the log holds a secret:\n" + "\n".join(told[:20])
