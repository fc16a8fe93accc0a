"""Programs that work on a recorded mount, and the model of what they may rely on after a power cut.

Every call is an operation with a number; the log says when it began and when it had returned. After a cut the names must be those after some operation that had begun, not
before the last one that made names durable. The bytes of a file must be those of its last sync, where nothing was written since; what was appended since leaves them as its front.
"""
import os
import random
import time

KIB = 1 << 10


class Node:
    """A file of the program: its bytes after each operation that changed them, and which operations synced and closed it."""

    def __init__(self, made):
        self.bytes = [(made, b"")]
        self.synced = []  # operations after which its bytes are durable
        self.closed = []  # operations at which a writer closed it
        self.dirty = True  # changed since its last close

    def now(self):
        return self.bytes[-1][1]

    def at(self, number):
        return next(data for made, data in reversed(self.bytes) if made <= number)

    def closed_bytes(self, number):
        """What may be published of it when operation `number` has begun."""
        return {self.at(n) for n in self.closed if n <= number}

    def must_hold(self, begun, ended):
        """(bytes that must be there, whether they are all of it), or None."""
        synced = max((n for n in self.synced if n <= ended), default=None)
        if synced is None:
            return None
        data = self.at(synced)
        later = [d for made, d in self.bytes if synced < made <= begun]
        if not later:
            return data, True
        return (data, False) if all(d[:len(data)] == data for d in later) else None


class Program:
    """Works in a mount; note(text) logs. close: the mount's option; passed: called after a write, when the kernel may have done it by itself."""

    def __init__(self, top, note, seed, close="buffered", passed=lambda: None, wait=None, lake=None):
        self.top, self.note, self.passed, self.wait_call, self.lake = str(top), note, passed, wait, lake
        self.random = random.Random(seed)
        self.durable_close = close in ("local", "remote")
        self.names = {}    # path -> Node, or None for a directory
        self.history = []  # names after each operation
        self.durable = []  # operations after which all names before are durable
        self.nodes = []
        self.fds = {}      # path -> descriptor that is open
        self.sync_fds = set()  # those of them with O_DSYNC
        self.saved = {}    # path -> operation before which a version of its file was durable or published; from then on it is only replaced by renames

    def op(self, call, change=None, durable=False):
        """One call; change(number) tells the model. Its result."""
        number = len(self.history)
        names = dict(self.names)
        if change:
            change(number)
        self.history.append(self.names)
        self.names = dict(self.names)
        self.note(f"b {number}")
        try:
            result = call()
        except OSError:
            self.note(f"x {number}")
            self.names = names
            raise
        self.note(f"e {number}")
        if durable:
            self.durable.append(number)
        return result

    def at(self, path):
        return f"{self.top}/{path}"

    def data(self, size):
        return self.random.randbytes(size)

    def create(self, path, flags=os.O_RDWR):
        def change(n):
            node = Node(n)
            self.nodes.append(node)
            self.names[path] = node

        self.opened(path, self.op(lambda: os.open(self.at(path), flags | os.O_CREAT | os.O_EXCL, 0o644), change), flags)

    def open(self, path, flags=os.O_RDWR):
        self.opened(path, self.op(lambda: os.open(self.at(path), flags)), flags)

    def opened(self, path, fd, flags):
        self.fds[path] = fd
        if flags & os.O_DSYNC:
            self.sync_fds.add(fd)
        else:
            self.sync_fds.discard(fd)  # a number used again

    def open_empty(self, path):
        """With O_TRUNC."""
        flags = os.O_RDWR | os.O_TRUNC
        self.opened(path, self.op(lambda: os.open(self.at(path), flags), lambda n: self.changed(path, n, b"")), flags)

    def changed(self, path, number, data):
        node = self.names[path]
        node.bytes.append((number, data))
        node.dirty = True

    def write(self, path, off, data):
        old = self.names[path].now()
        new = old[:off] + bytes(max(off - len(old), 0)) + data + old[off + len(data):]
        number, sync = len(self.history), self.fds[path] in self.sync_fds
        done = self.op(lambda: self.then_passed(os.pwrite(self.fds[path], data, off)), lambda n: self.changed(path, n, new), durable=sync)
        assert done == len(data)
        if sync:
            self.names[path].synced.append(number)

    def then_passed(self, result):
        self.passed()
        return result

    def append(self, path, data):
        self.write(path, len(self.names[path].now()), data)

    def truncate(self, path, size):
        old = self.names[path].now()
        new = old[:size] + bytes(max(size - len(old), 0))
        self.op(lambda: self.then_passed(os.ftruncate(self.fds[path], size)), lambda n: self.changed(path, n, new))

    def fsync(self, path):
        number, node = len(self.history), self.names[path]
        self.op(lambda: os.fsync(self.fds[path]), durable=True)
        node.synced.append(number)

    def fsync_dir(self, path=""):
        fd = os.open(self.at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.op(lambda: os.fsync(fd), durable=True)
        finally:
            os.close(fd)

    def close(self, path):
        number, node = len(self.history), self.names[path]
        durable = self.durable_close and node.dirty
        self.op(lambda: os.close(self.fds.pop(path)), lambda n: node.closed.append(n), durable)
        if durable:
            node.synced.append(number)
        node.dirty = False

    def rename(self, old, new):
        def change(_):
            if self.names[old] is not self.names.get(new, self):  # two names of one file both stay
                self.names[new] = self.names.pop(old)

        self.op(lambda: os.rename(self.at(old), self.at(new)), change)

    def unlink(self, path):
        self.op(lambda: os.unlink(self.at(path)), lambda n: self.names.pop(path))

    def link(self, old, new):
        self.op(lambda: os.link(self.at(old), self.at(new)), lambda n: self.names.__setitem__(new, self.names[old]))

    def mkdir(self, path):
        self.op(lambda: os.mkdir(self.at(path)), lambda n: self.names.__setitem__(path, None))

    def rmdir(self, path):
        self.op(lambda: os.rmdir(self.at(path)), lambda n: self.names.pop(path))

    def wait(self):
        """Everything is published, so it is on the disk as well; where nothing can be, it does nothing."""
        if not self.wait_call:
            return
        number = len(self.history)
        self.op(self.wait_call, durable=True)
        for node in self.names.values():
            if node:
                node.synced.append(number)

    def await_object(self, path):
        """Until there is one; what that is to the model, others in the lake have seen, is nothing: no program of this machine was told."""
        end = time.monotonic() + 30
        while not (self.lake / path).exists():
            assert time.monotonic() < end, f"{path} is not published"
            time.sleep(0.0005)

    def files(self):
        return sorted(p for p, node in self.names.items() if node and p not in self.fds)

    def put(self, path, size, sync=False):
        """A file written in one go, over an older one if there is one."""
        if path in self.names:
            self.open_empty(path)
        else:
            self.create(path)
        piece = max(size // 3, 1)
        for off in range(0, size, piece):
            self.append(path, self.data(min(piece, size - off)))
        if sync:
            self.fsync(path)
        self.close(path)


SIZES = (0, 1, 700, 4096, 5000, 20000, 70000, 200000)


def work_files(p, steps=70):
    """Everything a program may do to a few names."""
    p.mkdir("d")
    for step in range(steps):
        what, files = p.random.random(), p.files()
        fresh = f"{p.random.choice(('', 'd/'))}f{step}"
        if what < 0.30 or len(files) < 3:
            p.put(fresh, p.random.choice(SIZES), p.random.random() < 0.4)
        elif what < 0.40:
            p.put(p.random.choice(files), p.random.choice(SIZES), p.random.random() < 0.4)
        elif what < 0.55:
            path = p.random.choice(files)
            p.open(path)
            size = len(p.names[path].now())
            p.write(path, p.random.randint(0, size), p.data(p.random.choice((1, 600, 9000))))
            if p.random.random() < 0.4:
                p.fsync(path)
            if p.random.random() < 0.3:
                p.append(path, p.data(3000))
            p.close(path)
        elif what < 0.62:
            path = p.random.choice(files)
            p.open(path)
            p.truncate(path, p.random.randint(0, len(p.names[path].now()) + 5000))
            p.close(path)
        elif what < 0.72:
            p.unlink(p.random.choice(files))
        elif what < 0.82:
            p.rename(p.random.choice(files), p.random.choice(files + [fresh] * 3))
        elif what < 0.86:
            p.link(p.random.choice(files), fresh)
        elif what < 0.92:
            p.fsync_dir(p.random.choice(("", "d")))
        elif what < 0.95:
            p.mkdir(f"e{step}")
            if p.random.random() < 0.5:
                p.rmdir(f"e{step}")
        else:
            p.wait()


def work_saves(p, steps=8):
    """step_N/shards, then `latest`, as a training job does: shards synced by some steps, `latest` by tmp + rename; old steps go."""
    for step in range(steps):
        name, sync = f"step_{step}", p.random.random() < 0.5
        p.mkdir(name)
        for i in range(3):
            p.put(f"{name}/shard{i}", p.random.choice(SIZES[1:]), sync)
        p.put("latest.tmp", 0)
        p.open("latest.tmp")
        p.write("latest.tmp", 0, name.encode())
        if sync:
            p.fsync("latest.tmp")
        p.close("latest.tmp")
        p.rename("latest.tmp", "latest")
        if sync:
            p.fsync_dir()
        if step == 3:
            p.wait()
        if step >= 4:
            for i in range(3):
                p.unlink(f"step_{step - 4}/shard{i}")
            p.rmdir(f"step_{step - 4}")


def work_synced(p, steps=16):
    """Files written alone and beside readers, every write synced: by descriptors with O_DSYNC or O_SYNC, or by fsync."""
    for step in range(steps):
        path, reader, dsync = f"f{step}", None, p.random.choice((os.O_DSYNC, os.O_SYNC, 0))
        flags = p.random.choice((os.O_WRONLY, os.O_RDWR)) | dsync
        if step % 3 == 2:
            path = p.random.choice(p.files())
        if step % 3 == 1:
            p.put(path, p.random.choice(SIZES))
        if step % 3:
            reader = os.open(p.at(path), os.O_RDONLY)
            p.open(path, flags)
        else:
            p.create(path, flags)
        for _ in range(3):
            p.append(path, p.data(p.random.choice((1, 600, 9000))))
            if not dsync:
                p.fsync(path)
        if reader is not None:
            os.close(reader)
        p.close(path)


def work_removed(p, steps=20):
    """Files that go, or are renamed over, the moment they are in the lake."""
    for step in range(steps):
        p.put(f"f{step}", 5000)
        p.await_object(f"f{step}")
        if step % 3 == 2:
            p.put("new.tmp", 700)
            p.rename("new.tmp", f"f{step}")
        else:
            p.unlink(f"f{step}")


def work_replaced(p, steps=12):
    """Files that are synced or published; then others, of which nobody said that they are to be on the disk, are renamed over them, often several after each other."""
    p.mkdir("p")
    for step in range(steps):
        held = step % 2  # never published under a name like this
        path = f"f{step}.tmp" if held else f"p/f{step}"
        p.put(path, p.random.choice((700, 20000, 200000)), sync=bool(held))
        if not held:
            p.await_object(path)
        p.saved[path] = len(p.history)
        for i in range(p.random.choice((1, 2, 3))):
            fresh = f"new{step}.{i}.tmp"
            p.put(fresh, p.random.choice((700, 20000, 200000)))
            p.rename(fresh, path)
        if step % 4 >= 2:
            p.fsync_dir()
        if step % 6 == 5:
            time.sleep(0.5)
