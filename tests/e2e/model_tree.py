"""Random operations on a mount and on a reference tree beside it, compared after each; after a wait the bucket is compared with both.

What the mount answers (value or errno) the reference must answer too. A call that gives EIO while the store fails counts as not done, as POSIX programs take it.
"""
import ctypes
import errno
import os
import random
import shutil
import stat
import time

from model import CRASHES, FAULTS, Diverged, Run, brief, noise, setting, tried
from mounts import run

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
KEEP, PUNCH = 1, 2
FILES, DIRS = ["a", "b", "c"], ["dir", "sub"]
SIZES = [0, 1, 4095, 4096, 5000, 65536, 70001, 300000]
FLAGS = [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR | os.O_CREAT | os.O_TRUNC,
         os.O_RDWR | os.O_CREAT | os.O_APPEND, os.O_RDWR | os.O_TRUNC]
SLOTS = 3


def a_path(rng, last=FILES):
    """Of a file as a rule, and at times of what is a directory elsewhere; `last` says which."""
    above = rng.choices((0, 1, 2), (6, 5, 2))[0]
    names = [rng.choice(DIRS if rng.random() < 0.97 else FILES) for _ in range(above)]
    return "/".join([*names, rng.choice(last if rng.random() < 0.97 else FILES + DIRS)])


def a_size(rng):
    return rng.choice(SIZES) if rng.random() < 0.9 else rng.randrange(200000) if rng.random() < 0.95 else 6 << 20


def a_pair(rng):
    """Two names of one kind."""
    kind = DIRS if rng.random() < 0.25 else FILES
    return a_path(rng, kind), a_path(rng, kind)


def a_step(rng):
    """The next step, whatever the state."""
    p, slot, seed, some = a_path(rng), rng.randrange(SLOTS), rng.randrange(1 << 30), rng.randrange(90000)
    d, fault = a_path(rng, DIRS), rng.randrange(len(FAULTS))
    makers = [
        (14, lambda: ("write_file", p, a_size(rng), seed)), (8, lambda: ("read_file", p)), (18, lambda: ("open", slot, p, rng.choice(FLAGS))),
        (6, lambda: ("close", slot)), (9, lambda: ("pwrite", slot, some, rng.choice(SIZES), seed)), (3, lambda: ("append", slot, rng.choice(SIZES), seed)),
        (6, lambda: ("pread", slot, some, rng.choice(SIZES))), (3, lambda: ("ftruncate", slot, rng.choice(SIZES))), (2, lambda: ("fsync", slot)),
        (2, lambda: ("fallocate", slot, rng.choice((0, KEEP, KEEP | PUNCH)), some, 1 + rng.choice(SIZES))), (2, lambda: ("fstat", slot)),
        (2, lambda: ("copy_range", slot, rng.randrange(SLOTS), 1 + rng.choice(SIZES))),
        (8, lambda: ("mkdir", d)), (4, lambda: ("rmdir", d)), (7, lambda: ("unlink", p)),
        (9, lambda: ("rename", *a_pair(rng), rng.choice((0, 0, 0, NOREPLACE, EXCHANGE)))),
        (3, lambda: ("link", p, a_path(rng))), (3, lambda: ("symlink", rng.choice(["a", "b", "dir", "dir/a", "none", "c/b/a"]), p)), (2, lambda: ("readlink", p)),
        (4, lambda: ("listdir", d)), (5, lambda: ("stat", p)), (3, lambda: ("truncate", p, rng.choice(SIZES))),
        (2, lambda: ("chmod", p, rng.choice((0o600, 0o644, 0o755, 0o400)))),
        (2, lambda: ("utime", p, rng.randrange(1 << 31), rng.randrange(10 ** 9))), (2, lambda: ("setxattr", p, rng.choice("xyz"), rng.randrange(100), seed)),
        (1, lambda: ("removexattr", p, rng.choice("xyz"))), (1, lambda: ("getxattr", p, rng.choice("xyz"))), (1, lambda: ("evict", p)), (1, lambda: ("compare",)),
        (0.5, lambda: ("settle",)), (0.3, lambda: ("remount", fault)), (0.3, lambda: ("kill", fault)),
        (0.4, lambda: ("takeover",)), (0.6, lambda: ("arm", rng.choice(CRASHES), rng.choice((1, 1, 2, 5)))),
        (0.2, lambda: ("theirs", p, rng.choice(SIZES), seed)), (0.1, lambda: ("theirs_gone", p)), (0.1, lambda: ("new_cache",)),
    ]
    return rng.choices([m for _, m in makers], [w for w, _ in makers])[0]()


def steps_of(seed, count):
    rng = random.Random(seed)
    return [a_step(rng) for _ in range(count)] + [("settle",), ("new_cache",)]


def options_of(seed, store):
    rng = random.Random(f"options {seed}")
    held = {"hold": "c", "hold_delay": "2s"} if rng.random() < 0.2 else {}
    return {**setting(rng, store), **held}


class Side:
    """One of the two trees: plain calls below a directory, descriptors in slots."""

    def __init__(self, root):
        self.root, self.slots = str(root), {}
        self.store_fails = False

    def at(self, path):
        return f"{self.root}/{path}"

    def close_all(self):
        for fd in self.slots.values():
            try:
                os.close(fd)
            except OSError:
                pass
        self.slots = {}

    def shut(self, fd):
        """A close that waits for the store says so when that fails; the descriptor is gone all the same, and what was written is kept and published later."""
        try:
            os.close(fd)
        except OSError as e:
            if e.errno != errno.EIO or not self.store_fails:
                raise

    def fd(self, slot):
        if slot not in self.slots:
            raise OSError(errno.EBADF, "no such slot")
        return self.slots[slot]

    def write_file(self, path, n, seed):
        fd = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.pwrite(fd, noise(n, seed), 0)
        finally:
            os.close(fd)

    def read_file(self, path):
        fd = os.open(self.at(path), os.O_RDONLY)
        try:
            return os.pread(fd, 64 << 20, 0)
        finally:
            os.close(fd)

    def open(self, slot, path, flags):
        fd = os.open(self.at(path), flags, 0o644)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            return "a directory"
        before = self.slots.get(slot)
        self.slots[slot] = fd
        if before is not None:
            self.shut(before)
        return None

    def close(self, slot):
        fd = self.fd(slot)
        del self.slots[slot]
        self.shut(fd)

    def pwrite(self, slot, off, n, seed):
        return os.pwrite(self.fd(slot), noise(n, seed), off)

    def append(self, slot, n, seed):
        os.lseek(self.fd(slot), 0, os.SEEK_END)
        return os.write(self.fd(slot), noise(n, seed))

    def pread(self, slot, off, n):
        return os.pread(self.fd(slot), n, off)

    def ftruncate(self, slot, n):
        os.ftruncate(self.fd(slot), n)

    def fsync(self, slot):
        os.fsync(self.fd(slot))

    def fallocate(self, slot, mode, off, n):
        if LIBC.fallocate(self.fd(slot), mode, ctypes.c_long(off), ctypes.c_long(n)) < 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def fstat(self, slot):
        st = os.fstat(self.fd(slot))
        return st.st_size, st.st_nlink, st.st_mode

    def copy_range(self, slot, to, n):
        return os.copy_file_range(self.fd(slot), self.fd(to), n, 0, 0) if slot != to else 0

    def mkdir(self, path):
        os.mkdir(self.at(path))

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def unlink(self, path):
        os.unlink(self.at(path))

    def rename(self, old, new, flags):
        if LIBC.renameat2(AT_FDCWD, self.at(old).encode(), AT_FDCWD, self.at(new).encode(), flags) < 0:
            raise OSError(ctypes.get_errno(), "renameat2")

    def link(self, old, new):
        os.link(self.at(old), self.at(new), follow_symlinks=False)

    def symlink(self, target, path):
        os.symlink(target, self.at(path))

    def readlink(self, path):
        return os.readlink(self.at(path))

    def listdir(self, path):
        return sorted(os.listdir(self.at(path)))

    def stat(self, path):
        st = os.lstat(self.at(path))
        if stat.S_ISDIR(st.st_mode):
            return st.st_mode, st.st_uid, st.st_gid
        return st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size

    def truncate(self, path, n):
        os.truncate(self.at(path), n)

    def chmod(self, path, mode):
        if not os.path.isdir(self.at(path)):
            os.chmod(self.at(path), mode)

    def utime(self, path, s, ns):
        when = s * 10 ** 9 + ns
        os.utime(self.at(path), ns=(when, when))
        return os.stat(self.at(path)).st_mtime_ns

    def setxattr(self, path, name, n, seed):
        os.setxattr(self.at(path), f"user.{name}", noise(n, seed))

    def removexattr(self, path, name):
        os.removexattr(self.at(path), f"user.{name}")

    def getxattr(self, path, name):
        return os.getxattr(self.at(path), f"user.{name}")

    def snapshot(self, sub=""):
        """path -> what it is, for everything below."""
        found = {}
        for name in sorted(os.listdir(self.at(sub))):
            path = f"{sub}/{name}" if sub else name
            what = self.stat(path)
            if stat.S_ISDIR(what[0]):
                found[path] = what
                found.update(self.snapshot(path))
            elif stat.S_ISLNK(what[0]):
                found[path] = (what, os.readlink(self.at(path)))
            else:
                with open(self.at(path), "rb", buffering=0) as f:
                    found[path] = (what, f.readall(), sorted((n, os.getxattr(self.at(path), n)) for n in os.listxattr(self.at(path))))
        return found


class Tree(Run):
    """Steps on one mount and one reference."""

    def __init__(self, mount, store, options):
        reference = mount.base / "reference"
        os.makedirs(reference)
        self.ours, self.ref = Side(mount.path), Side(reference)
        self.kinds = {}
        super().__init__(mount, store, options)

    def close_all(self):
        self.ours.close_all()
        self.ref.close_all()

    def do_other(self, step):
        if self.store.kind == "file":
            if step[0] == "rename" and step[3] == EXCHANGE and self.is_dir(step[1]) != self.is_dir(step[2]):
                return
            if self.clashes(step):
                self.do_settle()
        self.ours.store_fails = self.faulty
        ours = tried(getattr(self.ours, step[0]), *step[1:], again=3 if self.faulty else 0)
        if ours == ("errno", "EIO") and self.faulty:
            return
        if ours == ("errno", "EOPNOTSUPP"):
            return
        ref = tried(getattr(self.ref, step[0]), *step[1:])
        if ours != ref:
            raise Diverged(f"{step}: the mount gives {brief(ours)}, the reference {brief(ref)}")
        if self.store.kind == "file":
            for path in self.changed_by(step):
                self.note_kinds(path)

    # A folder cannot hold the objects `a` and `a/x` beside each other as a bucket can, so a store that is one gets time to follow before a name that was a
    # directory becomes something else, or the other way round, and swaps of a file and a directory are left out. `kinds` is what each path was since the last settle.

    def changed_by(self, step):
        """Paths below the root that the step may make."""
        wanted = {"write_file": step[1:2], "open": step[2:3], "mkdir": step[1:2], "symlink": step[2:3], "link": step[2:3], "rename": step[1:3]}.get(step[0], ())
        for path in wanted:
            full = self.ref.at(path)
            real = os.path.realpath(full if step[0] in ("write_file", "open") else os.path.dirname(full))
            yield os.path.relpath(real if step[0] in ("write_file", "open") else os.path.join(real, os.path.basename(full)), os.path.realpath(self.ref.root))

    def is_dir(self, path):
        return os.path.isdir(self.ref.at(path)) and not os.path.islink(self.ref.at(path))

    def is_file(self, path):
        return os.path.isfile(self.ref.at(path)) and not os.path.islink(self.ref.at(path))

    def note_kinds(self, path):
        if os.path.lexists(self.ref.at(path)):
            self.kinds.setdefault(path, set()).add(self.is_dir(path))
        for top, dirs, files in os.walk(self.ref.at(path)):
            for name in dirs + files:
                below = os.path.relpath(os.path.join(top, name), self.ref.root)
                self.kinds.setdefault(below, set()).add(self.is_dir(below))

    def clashes(self, step):
        paths = list(self.changed_by(step))
        if step[0] == "rename":
            moved = any(self.is_dir(p) for p in paths)
            to = paths if step[3] == EXCHANGE else paths[1:]
            return any(True in self.kinds.get(q, ()) or moved and any(p == q or p.startswith(q + "/") for p in self.kinds) for q in to)
        return any(self.kinds.get(p, {step[0] == "mkdir"}) != {step[0] == "mkdir"} for p in paths) and not all(os.path.lexists(self.ref.at(p)) for p in paths)

    # ---- comparing ----

    def do_compare(self):
        kind, ours = tried(self.ours.snapshot, again=100 if self.faulty else 0)
        if kind != "ok":
            raise Diverged(f"the tree cannot be read: {ours}")
        self.same("the tree", ours, self.ref.snapshot())

    def same(self, what, ours, ref):
        for path in sorted(set(ours) | set(ref)):
            if ours.get(path) != ref.get(path):
                raise Diverged(f"{what}: {path} is {brief(ours.get(path))}, should be {brief(ref.get(path))}")

    def do_settle(self):
        """Everything closed is published: the bucket is the tree."""
        self.close_all()
        self.published()
        self.do_compare()
        self.compare_bucket()
        self.check_status()
        self.kinds = {}
        self.note_kinds(".")

    def compare_bucket(self):
        want = {}
        for path, what in self.ref.snapshot().items():
            if stat.S_ISREG((what[0] if isinstance(what[0], tuple) else what)[0]):
                want[path] = what[1]
            elif isinstance(what[0], tuple):
                want[path] = b""
        have = {key: self.store.get(key) for key in self.store.list()}
        self.same("the bucket", have, want)

    # ---- what happens to the mount ----

    def after_kill(self):
        """Files whose writer was cut off are published after their next close."""
        self.do_compare()
        for path, what in self.ref.snapshot().items():
            if isinstance(what[0], tuple) and stat.S_ISREG(what[0][0]):
                tried(lambda p=path: os.close(os.open(self.ours.at(p), os.O_RDWR)), again=20)

    def do_evict(self, path):
        if os.path.lexists(self.ref.at(path)):
            run("evict", self.ours.at(path), check=False)

    def do_new_cache(self):
        """What the bucket alone tells: names and bytes. Links between names, and attributes kept here only, are gone."""
        self.do_settle()
        self.disarm()
        self.mount.umount()
        shutil.rmtree(self.mount.cache)
        for path, what in self.ref.snapshot().items():
            if not isinstance(what[0], tuple):
                continue
            where = self.ref.at(path)
            if stat.S_ISLNK(what[0][0]):
                os.symlink(what[1], where + "~")
            else:
                with open(where + "~", "wb") as f:
                    f.write(what[1])
                os.chmod(where + "~", stat.S_IMODE(what[0][0]))
            os.unlink(where)  # two names of one file stay two with rename()
            os.rename(where + "~", where)
        self.mount.options["posix_meta"] = "on"  # listings do not tell modes
        self.start(0)
        self.do_compare()

    # ---- what somebody else does in the bucket ----

    def above(self, path):
        parts = path.split("/")
        return ["/".join(parts[:i]) for i in range(1, len(parts))]

    def soon(self, what, call, want):
        until = time.monotonic() + 20
        while tried(call, again=20) != want:
            if time.monotonic() > until:
                raise Diverged(f"{what}: not seen after 20 s: {brief(tried(call))}")
            time.sleep(0.05)

    def do_theirs(self, path, n, seed):
        """An object where a file or nothing is."""
        where = self.ref.at(path)
        if os.path.lexists(where) and not self.is_file(path) or any(os.path.lexists(self.ref.at(p)) and not self.is_dir(p) for p in self.above(path)):
            return
        self.do_settle()
        data = noise(n, seed) + b"theirs"
        if os.path.lexists(where):
            os.unlink(where)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as f:
            f.write(data)
        self.note_kinds(".")
        self.store.put(path, data)
        self.soon(f"theirs {path}", lambda: self.ours.read_file(path), ("ok", data))
        self.do_compare()

    def do_theirs_gone(self, path):
        """The object of a file is removed; its directory stays, as it has another one."""
        parent = os.path.dirname(path)
        if not self.is_file(path) or any(os.path.islink(self.ref.at(p)) for p in self.above(path)):
            return
        if parent and not any(self.is_file(f"{parent}/{name}") for name in os.listdir(self.ref.at(parent)) if name != os.path.basename(path)):
            return
        self.do_settle()
        os.unlink(self.ref.at(path))
        self.store.delete(path)
        self.soon(f"gone {path}", lambda: self.ours.stat(path), ("errno", "ENOENT"))
        self.do_compare()
