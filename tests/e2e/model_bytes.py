"""Random ways to read and to change the bytes of two files, against byte arrays: calls, maps, direct I/O, holes, copies, handles that stay open over everything.

A file has four handles: two for reading and writing, one of them with O_DIRECT, one for reading, and a shared map, which may outlive them. Direct I/O keeps to whole blocks,
maps to what the file holds.
"""
import contextlib
import ctypes
import errno
import mmap
import os
import random

from model import CRASHES, FAULTS, Diverged, Run, noise, setting, tried
from mounts import MIB, run

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 2, 16
BLOCK = 4096
NAMES = ("f", "g")
MODES = {"rw": os.O_RDWR, "direct": os.O_RDWR | os.O_DIRECT, "ro": os.O_RDONLY}


def brief_bytes(data):
    return f"{bytes(data[:8]).hex()}... ({len(data)})"


def a_step(rng, limit):
    """The next step on files of at most so many bytes."""
    spot = rng.randrange(limit) if rng.random() < 0.5 else rng.randrange(limit >> 12) << 12
    n = rng.choice((1, 100, 4096, 65536, 65537, 200000)) if rng.random() < 0.9 else rng.randrange(limit)
    n = max(1, min(n, limit - spot))
    file, seed, way, fault = rng.choice(NAMES), rng.randrange(1, 1 << 30), rng.choice(("rw", "rw", "direct")), rng.randrange(len(FAULTS))
    makers = [(18, ("write", file, way, spot, n, seed)), (22, ("read", file, rng.choice(("rw", "direct", "ro", "new", "send")), spot, n)),
              (6, ("append", file, n, seed)), (7, ("map_write", file, spot, n, seed)), (5, ("map_read", file, spot, n)), (2, ("msync", file)),
              (2, ("unmap", file)), (5, ("truncate", file, rng.choice(("fd", "path")), rng.choice((spot, spot, 0, limit)))), (1, ("create", file)),
              (5, ("fallocate", file, KEEP | PUNCH, spot, n)), (2, ("fallocate", file, ZERO, spot, n)), (1, ("fallocate", file, ZERO | KEEP, spot, n)),
              (2, ("fallocate", file, 0, spot, n)), (1, ("fallocate", file, KEEP, spot, n)),
              (4, ("copy", file, rng.choice(NAMES), rng.randrange(limit), spot, n)), (2, ("sync", file)), (2, ("holes", file)),
              (4, ("close", file, rng.choice(list(MODES)))), (2, ("compare",)), (1.5, ("evict", file)), (1, ("evict_open", file)),
              (0.4, ("remount", fault)), (0.3, ("kill", fault)), (0.6, ("takeover",)), (0.8, ("arm", rng.choice(CRASHES), rng.choice((1, 1, 2, 5))))]
    return rng.choices([s for _, s in makers], [w for w, _ in makers])[0]


def steps_of(seed, count):
    rng = random.Random(seed)
    limit = rng.choice((200_000, MIB, MIB, 6 * MIB))
    return [a_step(rng, limit) for _ in range(count)] + [("evict", "f"), ("evict", "g"), ("compare",)]


def options_of(seed, store, passthrough):
    return {**setting(random.Random(f"options {seed}"), store), "passthrough": passthrough}


def pieces(off, n):
    """Without the rest of a block at either end."""
    first, last = -(-off // BLOCK) * BLOCK, (off + n) // BLOCK * BLOCK
    return first, max(0, last - first)


class Bytes(Run):
    def __init__(self, mount, store, options):
        self.want = {name: bytearray() for name in NAMES}
        self.fds, self.maps, self.side = {}, {}, os.memfd_create("side")
        super().__init__(mount, store, options)
        for name in NAMES:
            self.shut(os.open(self.at(name), os.O_RDWR | os.O_CREAT, 0o644))

    def at(self, name):
        return f"{self.mount.path}/{name}"

    def fd(self, name, way="rw"):
        if (name, way) not in self.fds:
            self.fds[name, way] = self.sure(os.open, self.at(name), MODES[way])
        return self.fds[name, way]

    def close_file(self, name):
        self.do_unmap(name)
        for way in MODES:
            self.do_close(name, way)

    def close_all(self):
        for name in NAMES:
            self.close_file(name)

    def let_go(self):
        for name in NAMES:
            self.do_unmap(name)
        for fd in self.fds.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds = {}

    def sure(self, call, *args):
        """Its value; while the store fails EIO is tried again, as every step here may be."""
        kind, value = tried(call, *args, again=50 if self.faulty else 0)
        if kind != "ok":
            raise Diverged(f"{call.__name__} gives {value}")
        return value

    def shut(self, fd):
        """A close that waits for the store says so when that fails; what was written is kept and published later."""
        try:
            os.close(fd)
        except OSError as e:
            if e.errno != errno.EIO or not self.faulty:
                raise

    def grow(self, name, size):
        self.want[name].extend(bytes(max(0, size - len(self.want[name]))))

    def finish(self):
        super().finish()
        os.close(self.side)

    # ---- comparing ----

    def equal(self, name, off, got):
        want = bytes(self.want[name][off:off + len(got)])
        if got != want:
            at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
            raise Diverged(f"{name}: bytes differ from {off + at} on: {brief_bytes(got[at:])}, should be {brief_bytes(want[at:])}, size {len(self.want[name])}")

    def size_is(self, name):
        for what in (self.at(name), *(fd for (n, _), fd in self.fds.items() if n == name)):
            size = self.sure(os.stat, what).st_size
            if size != len(self.want[name]):
                raise Diverged(f"{name}: size is {size}, should be {len(self.want[name])}")

    def whole(self, name, off, n, got):
        if len(got) != max(0, min(n, len(self.want[name]) - off)):
            raise Diverged(f"{name}: read of {n} at {off} gives {len(got)}, the file has {len(self.want[name])}")
        self.equal(name, off, got)

    def do_compare(self):
        for name in NAMES:
            self.size_is(name)
            self.do_read(name, "new", 0, len(self.want[name]) + 1)

    def object_is(self, name):
        if self.store.get(name) != bytes(self.want[name]):
            raise Diverged(f"the object {name} is not the file")

    # ---- reading ----

    def do_read(self, name, way, off, n):
        if way == "new":
            fd = self.sure(os.open, self.at(name), os.O_RDONLY)
            try:
                self.whole(name, off, n, self.all_of(fd, n, off))
            finally:
                self.shut(fd)
        elif way == "send":
            self.send(name, off, n)
        elif way == "direct":
            self.read_direct(name, off, n)
        else:
            self.whole(name, off, n, self.all_of(self.fd(name, way), n, off))

    def all_of(self, fd, n, off):
        """A read may end early, before the end of the file too, where the store fails."""
        got = bytearray()
        while len(got) < n:
            more = self.sure(os.pread, fd, n - len(got), off + len(got))
            if not more:
                break
            got += more
        return bytes(got)

    def read_direct(self, name, off, n):
        off, n = pieces(off, n)
        if n == 0:
            return
        with mmap.mmap(-1, n) as buffer:
            got = self.sure(os.preadv, self.fd(name, "direct"), [buffer], off)
            if not self.faulty or got == n:
                self.whole(name, off, n, buffer[:got])
            else:
                self.equal(name, off, buffer[:got])

    def send(self, name, off, n):
        fd, out, done = self.fd(name, "ro"), os.memfd_create("out"), 0
        try:
            while done < n:
                more = self.sure(os.sendfile, out, fd, off + done, n - done)
                if more == 0:
                    break
                done += more
            self.whole(name, off, n, os.pread(out, n, 0))
        finally:
            os.close(out)

    def do_holes(self, name):
        """A hole reads as zeros, and there is none before what was written."""
        fd, end = self.fd(name, "ro"), 0
        while end < len(self.want[name]):
            try:
                data = os.lseek(fd, end, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                data = len(self.want[name])
            if any(self.want[name][end:data]):
                raise Diverged(f"{name}: a hole is told from {end} to {data}, where data is")
            end = os.lseek(fd, data, os.SEEK_HOLE) if data < len(self.want[name]) else data

    # ---- writing ----

    def put(self, fd, data, off):
        done = 0
        while done < len(data):
            done += self.sure(os.pwrite, fd, data[done:], off + done)

    def do_write(self, name, way, off, n, seed):
        if way == "direct":
            off, n = pieces(off, n)
        if n == 0:
            return
        data = noise(n, seed)
        if way == "direct":
            with mmap.mmap(-1, n) as buffer:
                buffer[:] = data
                done = self.sure(os.pwritev, self.fd(name, "direct"), [buffer], off)
            if done != n:
                raise Diverged(f"{name}: direct write of {n} at {off} gives {done}")
        else:
            self.put(self.fd(name), data, off)
        self.grow(name, off)
        self.want[name][off:off + n] = data
        self.size_is(name)

    def do_append(self, name, n, seed):
        n = min(n, 100000)
        fd = self.sure(os.open, self.at(name), os.O_WRONLY | os.O_APPEND)
        try:
            data, done = noise(n, seed), 0
            while done < n:
                done += self.sure(os.write, fd, data[done:])
        finally:
            self.shut(fd)
        self.want[name] += data
        self.size_is(name)

    def map_of(self, name, off, n):
        """The map, made now if it does not reach so far; None if the file does not."""
        if off + n > len(self.want[name]) or n == 0:
            return None
        if name in self.maps and len(self.maps[name]) < off + n:
            self.do_unmap(name)
        if name not in self.maps:
            self.maps[name] = mmap.mmap(self.fd(name), len(self.want[name]))
        return self.maps[name]

    def through_map(self, name, off, n, call):
        """By the kernel, to or from another file: a page that cannot be had is an error then, and no signal."""
        done = 0
        with memoryview(self.maps[name]) as view:
            while done < n:
                with view[off + done:off + n] as rest:
                    kind, value = tried(call, self.side, [rest], done)
                if kind == "ok":
                    done += value
                elif value != "EFAULT" or not self.faulty:
                    raise Diverged(f"{name}: the map at {off + done} gives {value}")

    def do_map_write(self, name, off, n, seed):
        if self.map_of(name, off, n):
            data = noise(n, seed)
            os.pwrite(self.side, data, 0)
            self.through_map(name, off, n, os.preadv)
            self.want[name][off:off + n] = data

    def do_map_read(self, name, off, n):
        if self.map_of(name, off, n):
            self.through_map(name, off, n, os.pwritev)
            self.equal(name, off, os.pread(self.side, n, 0))

    def do_msync(self, name):
        if name in self.maps:
            self.sure(self.maps[name].flush)

    def do_unmap(self, name):
        if name in self.maps:
            self.maps.pop(name).close()

    def do_truncate(self, name, how, size):
        if how == "fd":
            self.sure(os.ftruncate, self.fd(name), size)
        else:
            self.sure(os.truncate, self.at(name), size)
        del self.want[name][size:]
        self.grow(name, size)
        self.size_is(name)

    def do_create(self, name):
        self.shut(self.sure(os.open, self.at(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        self.want[name].clear()
        self.size_is(name)

    def do_fallocate(self, name, mode, off, n):
        def fallocate():
            if LIBC.fallocate(self.fd(name), mode, ctypes.c_long(off), ctypes.c_long(n)) < 0:
                raise OSError(ctypes.get_errno(), "fallocate")
        kind, value = tried(fallocate, again=50 if self.faulty else 0)
        if (kind, value) == ("errno", "EOPNOTSUPP"):
            return
        if kind != "ok":
            raise Diverged(f"fallocate gives {value}")
        if mode & (PUNCH | ZERO):
            end = min(off + n, len(self.want[name]))
            self.want[name][off:end] = bytes(max(0, end - off))
        if not mode & KEEP:
            self.grow(name, off + n)
        self.size_is(name)

    def do_copy(self, name, to, src, dst, n):
        n = min(n, len(self.want[name]) - src)
        if n <= 0 or name == to and abs(src - dst) < n:
            return
        done = self.sure(os.copy_file_range, self.fd(name), self.fd(to), n, src, dst)
        data = self.want[name][src:src + done]
        self.grow(to, dst)
        self.want[to][dst:dst + done] = data
        self.size_is(to)

    def do_sync(self, name):
        self.sure(os.fsync, self.fd(name))

    def do_close(self, name, way):
        if (name, way) in self.fds:
            self.shut(self.fds.pop((name, way)))

    # ---- what happens to the mount ----

    def do_evict(self, name):
        """Closed, published, dropped: what is read next comes from the object."""
        for other in NAMES:  # one that was closed before and is open again is waited for, where there is an order
            if other == name or self.options["order"] != "none":
                self.close_file(other)
        self.published(name)
        self.object_is(name)
        run("evict", self.at(name), check=False)

    def do_evict_open(self, name):
        """Under whoever has it open: taken or refused, nobody notices."""
        run("evict", self.at(name), check=False)

    def before_kill(self):
        """What a map holds counts from its msync on."""
        for name in NAMES:
            self.do_msync(name)

    def after_kill(self):
        self.do_compare()
        for name in NAMES:  # a writer that was cut off: published after the next close
            self.shut(self.sure(os.open, self.at(name), os.O_RDWR))
