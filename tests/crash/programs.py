"""Programs that use a mount while it is killed, and what they know of it afterwards.

Each has a directory of its own and one thread, so its model is exact: `names` maps a path to what is there. Before each system call that changes something the
program notes what may be true if nobody answers it (`pending`); after a new mount settle() looks which it is. Bytes are closed content when they are in
`closed`: nothing else may ever be seen in the bucket.
"""
import collections
import ctypes
import errno
import hashlib
import os
import random
import time

LIBC = ctypes.CDLL(None, use_errno=True)
POOL = random.Random(1).randbytes(4 << 20)
PART = 128 << 10
# Is a call that was carried out by a worker that died before its answer told so by the next one? Until then what is there counts.
ANSWERED_ONCE = True
TWICE = {errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY}
DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.EIO}


def digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


class Node:
    """One regular file, under one name or several."""

    def __init__(self, data=b""):
        self.data = data


class Link(str):
    """A symlink's target."""


DIRECTORY = "directory"


def value(entry):
    return entry.data if isinstance(entry, Node) else entry


class Torn:
    """A write that was not answered: any beginning of it may be there."""

    def __init__(self, old, off, new):
        self.old, self.off, self.new = old, off, new

    def fits(self, now):
        if not isinstance(now, bytes) or now[:self.off] != self.old[:self.off].ljust(self.off, b"\0")[:len(now)]:
            return False
        done = 0
        tail = now[self.off:self.off + len(self.new)]
        while done < len(tail) and tail[done] == self.new[done]:
            done += 1
        want = self.old[:self.off].ljust(self.off, b"\0") + self.new[:done] + self.old[self.off + done:]
        return now == want or now == self.old


class Program:
    def __init__(self, top, name, seed):
        self.random = random.Random(seed)
        self.name, self.dir = name, top / name
        self.dying = None  # set: the mount is about to go
        self.names, self.closed = {}, {digest(b"")}
        self.pending = None  # [(expected values by path, what makes the model so), ...]
        self.unclosed = None  # path of a file that nobody closed, perhaps
        self.fd = -1
        self.failure = None
        self.n_steps = self.n_twice = 0
        self.last = ""
        self.history = collections.deque(maxlen=400)

    # ---- one system call ----

    def path(self, rel):
        return self.dir / rel

    def call(self, after, commit, work, torn=None):
        """work() makes the paths of `after` what it says; commit() does so with the model."""
        before = {rel: value(self.names.get(rel)) for rel in after}
        self.history.append((time.time(), self.last, {rel: self.show(x) for rel, x in after.items()}))
        self.pending = [(before, lambda: None), (torn or after, commit)]
        try:
            result = work()
        except OSError as e:
            if ANSWERED_ONCE or e.errno not in TWICE or not self.is_there(after):
                raise
            self.n_twice += 1
            result = None
        commit()
        self.pending = None
        return result

    def is_there(self, want):
        return all(self.look(rel) == x for rel, x in want.items())

    # ---- files ----

    def open(self, rel, flags):
        node = self.names.get(rel) or Node()
        data = b"" if flags & os.O_TRUNC else node.data

        def commit():
            self.names[rel] = node
            node.data = data

        self.unclosed = rel
        self.fd = self.call({rel: data}, commit, lambda: self.do_open(rel, flags | os.O_CREAT))

    def do_open(self, rel, flags):
        try:
            return os.open(self.path(rel), flags, 0o644)
        except FileExistsError:
            if ANSWERED_ONCE:
                raise
            self.n_twice += 1
            return os.open(self.path(rel), flags, 0o644)

    def put(self, rel, off, data, do=None):
        """do: what makes it so, instead of a write; the number of bytes comes back."""
        node = self.names[rel]
        old = node.data
        new = old[:off].ljust(off, b"\0") + data + old[off + len(data):]

        def commit():
            node.data = new

        def work():
            n = do() if do else os.pwrite(self.fd, data, off)
            if n < len(data) and self.dying.is_set():
                raise OSError(errno.ENOTCONN, "cut short")
            assert n == len(data), f"{self.path(rel)}: {n} of {len(data)} bytes written"

        self.call({rel: new}, commit, work, {rel: Torn(old, off, data)})

    def close(self, rel):
        self.closed.add(digest(self.names[rel].data))
        fd, self.fd = self.fd, -1
        self.call({}, lambda: None, lambda: os.close(fd))
        self.unclosed = None

    def fill(self, rel, off, data):
        """Writes data in pieces and closes."""
        step = self.random.choice((4096, 64 << 10, 100000, 1 << 20))
        for at in range(0, len(data), step):
            self.put(rel, off + at, data[at:at + step])
        if self.random.random() < 0.25:
            os.fsync(self.fd)
        self.close(rel)

    def write(self, rel, data):
        self.open(rel, os.O_WRONLY | os.O_TRUNC)
        self.fill(rel, 0, data)

    def append(self, rel, data):
        self.open(rel, os.O_WRONLY)
        self.fill(rel, len(self.names[rel].data), data)

    def patch(self, rel, data):
        self.open(rel, os.O_RDWR)
        self.fill(rel, self.random.randrange(len(self.names[rel].data) + 1), data)

    def copy(self, old, new):
        """By the kernel, into a new file."""
        data = self.names[old].data
        self.open(new, os.O_WRONLY | os.O_TRUNC)
        source = os.open(self.path(old), os.O_RDONLY)
        try:
            self.put(new, 0, data, lambda: os.copy_file_range(source, self.fd, len(data)) if data else 0)
        finally:
            os.close(source)
        self.close(new)

    def allocate(self, rel, size):
        """So many bytes behind its end."""
        self.open(rel, os.O_WRONLY)
        end = len(self.names[rel].data)
        self.put(rel, end, bytes(size), lambda: os.posix_fallocate(self.fd, end, size) or size)
        self.close(rel)

    def mark(self, rel, value):
        """An attribute comes and goes; it is not part of the model."""
        os.setxattr(self.path(rel), "user.mark", value)
        assert os.getxattr(self.path(rel), "user.mark") == value
        os.removexattr(self.path(rel), "user.mark")

    def truncate(self, rel, size):
        node = self.names[rel]
        data = node.data[:size].ljust(size, b"\0")

        def commit():
            node.data = data

        self.closed.add(digest(data))
        self.unclosed = rel
        self.call({rel: data}, commit, lambda: os.truncate(self.path(rel), size))
        self.unclosed = None

    # ---- names ----

    def below(self, rel):
        return [x for x in self.names if x == rel or x.startswith(rel + "/")]

    def rename(self, old, new):
        """Of a file or a whole directory; what is at new goes."""
        if self.names[old] is self.names.get(new) and old != new and isinstance(self.names[old], Node):
            os.rename(self.path(old), self.path(new))
            return
        moved = {new + x[len(old):]: self.names[x] for x in self.below(old)}
        after = {x: None for x in self.below(old)} | {x: value(y) for x, y in moved.items()}

        def commit():
            for x in self.below(old):
                del self.names[x]
            self.names.update(moved)

        self.call(after, commit, lambda: os.rename(self.path(old), self.path(new)))

    def exchange(self, a, b):
        swapped = {b + x[len(a):]: self.names[x] for x in self.below(a)} | {a + x[len(b):]: self.names[x] for x in self.below(b)}
        gone = {x: None for x in self.below(a) + self.below(b)}

        def work():
            if LIBC.renameat2(-100, os.fsencode(self.path(a)), -100, os.fsencode(self.path(b)), 2) < 0:
                raise OSError(ctypes.get_errno(), f"exchange {a} {b}")

        def commit():
            for x in gone:
                del self.names[x]
            self.names.update(swapped)

        self.call(gone | {x: value(y) for x, y in swapped.items()}, commit, work)

    def unlink(self, rel):
        self.call({rel: None}, lambda: self.names.pop(rel), lambda: os.unlink(self.path(rel)))

    def link(self, old, new):
        self.call({new: self.names[old].data}, lambda: self.names.__setitem__(new, self.names[old]), lambda: os.link(self.path(old), self.path(new)))

    def symlink(self, target, rel):
        self.call({rel: Link(target)}, lambda: self.names.__setitem__(rel, Link(target)), lambda: os.symlink(target, self.path(rel)))

    def mkdir(self, rel):
        self.call({rel: DIRECTORY}, lambda: self.names.__setitem__(rel, DIRECTORY), lambda: os.mkdir(self.path(rel)))

    def rmdir(self, rel):
        self.call({rel: None}, lambda: self.names.pop(rel), lambda: os.rmdir(self.path(rel)))

    # ---- life ----

    def data(self, size):
        at = self.random.randrange(len(POOL) - size) if size < len(POOL) else 0
        return self.random.randbytes(min(size, 16)) + POOL[at:at + max(size - 16, 0)]

    def run(self, stop, dying):
        """Until told to stop. Once `dying` is set the mount may be gone; before that nothing may fail."""
        self.dying = dying
        try:
            while not stop.is_set():
                self.step()
                self.n_steps += 1
        except OSError as e:
            if not (dying.is_set() and e.errno in DEAD):
                self.failure = f"{self.name}: {self.last}: {e!r} {e.filename} {e.filename2 or ''}"
        except AssertionError as e:
            self.failure = f"{self.name}: {self.last}: {e}"

    def drop_fd(self):
        if self.fd >= 0:
            try:
                os.close(self.fd)
            except OSError:
                pass
            self.fd = -1

    def look(self, rel):
        path = self.path(rel)
        if os.path.islink(path):
            return Link(os.readlink(path))
        if os.path.isdir(path):
            return DIRECTORY
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def settle(self):
        """After a new mount: what became of the call that nobody answered? What was not closed is gone on with."""
        self.drop_fd()
        self.dying.clear()
        if self.pending:
            touched = {rel: self.look(rel) for expect, _ in self.pending for rel in expect}
            for expect, commit in reversed(self.pending):
                if all(w.fits(touched[rel]) if isinstance(w, Torn) else w == touched[rel] for rel, w in expect.items()):
                    commit()
                    for rel, want in expect.items():
                        if isinstance(want, Torn):
                            self.names[rel].data = touched[rel]
                    break
            else:
                raise AssertionError(f"{self.name}: {self.last}: neither done nor not done: " + self.describe(touched))
            self.pending = None
        rel, self.unclosed = self.unclosed, None
        if rel in self.names:
            if self.random.random() < 0.5:
                self.write(rel, self.data(3000))
            else:
                self.append(rel, self.data(3000))

    def forget_links(self):
        """Names of one file are objects of their own, and files of their own for a mount that knows nothing else."""
        self.names = {rel: Node(x.data) if isinstance(x, Node) else x for rel, x in self.names.items()}

    def describe(self, touched):
        short = lambda x: f"{len(x)} bytes {digest(x).hex()[:8]}" if isinstance(x, bytes) else repr(x)
        return f"{ {k: short(v) for k, v in touched.items()} } expected one of " + repr(
            [{k: f"{len(w.old)}>{w.off}+{len(w.new)}" if isinstance(w, Torn) else short(w) for k, w in e.items()} for e, _ in self.pending])

    def tree(self):
        found = {}
        for top, dirs, files in os.walk(self.dir):
            for name in dirs + files:
                rel = os.path.relpath(os.path.join(top, name), self.dir)
                found[rel] = self.look(rel)
        return found

    def check(self):
        found = self.tree()
        want = {rel: value(x) for rel, x in self.names.items()}
        if found == want:
            self.check_links()
            return
        wrong = sorted(rel for rel in found.keys() | want.keys() if found.get(rel) != want.get(rel))
        bad = [f"{rel}: {self.show(found.get(rel))}, not {self.show(want.get(rel))}" for rel in wrong]
        self.tell(wrong[:3])
        raise AssertionError(f"{self.name} differs (last: {self.last}): " + "; ".join(bad[:6]))

    def check_links(self):
        """Names of one file are of one file."""
        names = collections.defaultdict(list)
        for rel, x in self.names.items():
            if isinstance(x, Node):
                names[id(x)].append(rel)
        for rels in names.values():
            found = {rel: os.lstat(self.path(rel)).st_ino for rel in rels}
            if len(set(found.values())) > 1:
                self.tell(rels)
                raise AssertionError(f"{self.name}: not one file any more (last: {self.last}): {found}")

    def tell(self, wrong):
        """What was done to these paths, and those that they were moved from, last of all."""
        told = []
        for h in reversed(self.history):
            if any(rel in h[2] for rel in wrong):
                told.insert(0, h)
                wrong = wrong + list(h[2])
        for at, last, after in told[-25:]:
            print(f"  {time.strftime('%T', time.gmtime(at))}.{int(at * 1000) % 1000:03} {self.name} {last}: {after}")

    @staticmethod
    def show(x):
        return f"{len(x)} bytes {digest(x).hex()[:6]}" if isinstance(x, bytes) else repr(x)


class Mixed(Program):
    """Everything that programs do to files and names, at random."""

    SIZES = (0, 1, 700, 5000, 70000, 200000, 3 * PART + 5000, 6 * PART + 77, 9 * PART)
    MAX = 16

    def files(self):
        return sorted(x for x, y in self.names.items() if isinstance(y, Node))

    def dirs(self):
        return sorted(x for x, y in self.names.items() if y is DIRECTORY)

    def place(self, stem):
        """A free path, in one of the directories or above them."""
        where = self.random.choice([""] + [d + "/" for d in self.dirs()])
        for _ in range(40):
            rel = f"{where}{stem}{self.random.randrange(30)}"
            if rel not in self.names:
                return rel
        return f"{where}{stem}{self.random.getrandbits(40)}"

    def file(self):
        return self.random.choice(self.files())

    def some(self):
        return self.data(self.random.choice(self.SIZES))

    def step(self):
        if len(self.files()) < 4:
            kinds = [self.new_file]
        elif len(self.files()) > self.MAX:
            kinds = [self.remove]
        else:
            kinds = [self.new_file, self.overwrite, self.more, self.change, self.cut, self.remove, self.save, self.save_held, self.move, self.replace, self.swap,
                     self.another_name, self.point, self.new_dir, self.drop_dir, self.move_dir, self.read, self.duplicate, self.reserve, self.label]
        kind = self.random.choice(kinds)
        self.last = kind.__name__
        kind()

    def new_file(self):
        self.write(self.place("f"), self.some())

    def overwrite(self):
        self.write(self.file(), self.some())

    def more(self):
        self.append(self.file(), self.data(self.random.choice((1, 900, 40000))))

    def change(self):
        self.patch(self.file(), self.data(self.random.choice((1, 5000, 70000))))

    def cut(self):
        rel = self.file()
        self.truncate(rel, self.random.randrange(len(self.names[rel].data) + 20000))

    def duplicate(self):
        self.copy(self.file(), self.place("f"))

    def reserve(self):
        self.allocate(self.file(), self.random.choice((1, 5000, 70000)))

    def label(self):
        self.mark(self.file(), self.random.randbytes(8))

    def remove(self):
        links = [x for x, y in self.names.items() if isinstance(y, Link)]
        self.unlink(self.random.choice(self.files() + links))

    def save(self, tail=".new"):
        rel = self.file()
        tmp = rel + tail
        self.write(tmp, self.some())
        self.rename(tmp, rel)

    def save_held(self):
        self.save(".tmp")

    def move(self):
        self.rename(self.file(), self.place("f"))

    def replace(self):
        self.rename(*self.random.sample(self.files(), 2))

    def swap(self):
        """Of two that hold the same settle() could not say whether they were: and other names of them would be taken for those of the wrong one."""
        a, b = self.random.sample(self.files(), 2)
        if ANSWERED_ONCE and self.names[a].data != self.names[b].data:
            self.exchange(a, b)

    def another_name(self):
        self.link(self.file(), self.place("f"))

    def point(self):
        self.symlink(self.random.choice(("f1", "nowhere", "../x")), self.place("s"))

    def new_dir(self):
        if len(self.dirs()) < 5:
            self.mkdir(self.place("d"))

    def drop_dir(self):
        empty = [d for d in self.dirs() if self.below(d) == [d]]
        if empty:
            self.rmdir(self.random.choice(empty))

    def move_dir(self):
        dirs = self.dirs()
        if not dirs:
            return
        old, new = self.random.choice(dirs), self.place("d")
        if not new.startswith(old + "/"):
            self.rename(old, new)

    def read(self):
        rel = self.file()
        assert self.path(rel).read_bytes() == self.names[rel].data, f"{rel} reads wrong"


class Saver(Program):
    """A training job: shards of step N, then `latest`; now and then an old step goes. saved: what `latest` promises, by digest."""

    def __init__(self, top, name, seed):
        super().__init__(top, name, seed)
        self.number, self.saved = 0, {}

    def step(self):
        self.number += 1
        name = f"global_step{self.number}"
        self.last = name
        self.mkdir(name)
        shards = {}
        for i in range(self.random.randrange(1, 4)):
            rel = f"{name}/mp_rank_{i:02}_model_states.pt"
            data = self.data(self.random.choice((900, 60000, 5 * PART, 7 * PART + 3)))
            shards[rel] = digest(data)
            self.write(rel, data)
        self.saved[name] = shards
        if self.random.random() < 0.5:
            self.write("latest.tmp", name.encode())
            self.rename("latest.tmp", "latest")
        else:
            self.write("latest", name.encode())
        for old in [d for d, x in self.names.items() if x is DIRECTORY and int(d[11:]) < self.number - 2]:
            for rel in [x for x in self.below(old) if x != old]:
                self.unlink(rel)
            self.rmdir(old)

    def settle(self):
        super().settle()
        # `latest` that was cut off in the middle of being written: written anew above, with other bytes; a job that starts again saves again
        if self.names.get("latest") and not self.names["latest"].data.startswith(b"global_step"):
            self.write("latest", f"global_step{max(self.number - 1, 0)}".encode())

    def check_bucket(self, get):
        """get(key): the object's bytes or None. What `latest` names is there, whole."""
        def lacks(shards):
            return [rel for rel, want in shards.items() if digest(get(f"{self.name}/{rel}") or b"") != want]

        for _ in range(50):
            latest = get(f"{self.name}/latest")
            if not latest or latest.decode(errors="replace") not in self.saved:
                return  # none yet, or what settle() wrote into it
            shards = self.saved[latest.decode()]
            bad = lacks(shards)
            if not bad:
                return
            if get(f"{self.name}/latest") == latest and lacks({rel: shards[rel] for rel in bad}):
                raise AssertionError(f"`latest` names {latest}, of which the bucket lacks {bad}")
