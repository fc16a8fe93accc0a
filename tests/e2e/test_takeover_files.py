"""Files that are open when a worker dies: whoever has them goes on as if nothing had been."""
import errno
import fcntl
import mmap
import os
import random
import subprocess
import threading
import time

import pytest
from mounts import MIB, NIGHT, QUICK, eventually, in_thread, run
from test_moves import exchange


@pytest.fixture(params=["on", "off"], name="m")
def _mount(request, make_mount):
    m = make_mount(passthrough=request.param, settle="0s")
    if request.param == "on" and not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    return m


def test_open_files_go_on(m, store):
    data = random.Random(2).randbytes(2 * MIB)
    store.put("r", data)
    with open(m.path / "r", "rb", buffering=0) as r, open(m.path / "w", "w+b", buffering=0) as w, open(m.path / "a", "ab", buffering=0) as a:
        w.write(data)
        a.write(b"one")
        for i in range(2):
            m.kill_worker()
            assert os.pread(r.fileno(), 5000, 777) == data[777:5777]
            w.seek(MIB + i)
            w.write(b"!")
            assert os.pread(w.fileno(), 100, MIB) == b"!!"[:i + 1] + data[MIB + i + 1:MIB + 100]
            a.write(b"two")
            os.fsync(a.fileno())
            assert os.fstat(a.fileno()).st_size == 3 * (i + 2)
    m.wait()
    assert store.get("w") == data[:MIB] + b"!!" + data[MIB + 2:]
    assert store.get("a") == b"onetwotwo"


def test_reader_goes_on(m, store):
    data = random.Random(2).randbytes(20 * MIB)
    store.put("f", data)
    with open(m.path / "f", "rb", buffering=0) as f, open(m.path / "f", "rb", buffering=0) as again:
        assert f.read(1000) == data[:1000]
        m.kill_worker()
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(f.fileno(), len(data), 0) == data
        assert (m.path / "f").read_bytes() == data
        m.kill_worker()
        assert os.pread(again.fileno(), len(data), 0) == data


def test_writer_is_not_sealed_by_a_takeover(m, store):
    """Closed files behind it are published; it is not."""
    with open(m.path / "a", "wb", buffering=0) as f:
        f.write(b"1")
        (m.path / "b").write_bytes(b"2")
        m.kill_worker()
        m.wait("b")
        assert store.get("b") == b"2"
        assert store.head("a") is None
        f.write(b"2")
    m.wait()
    assert store.get("a") == b"12"


def test_duplicate_of_a_closed_descriptor_writes_on(m, store):
    """The close of one is no end of the file: what is published is what is there when the last one closes."""
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"a" * MIB)
    os.close(os.dup(fd))
    m.kill_worker()
    time.sleep(1)
    assert "f" not in store.list()
    os.pwrite(fd, b"b" * 1000, 10)
    os.close(fd)
    m.wait()
    assert store.get("f") == b"a" * 10 + b"b" * 1000 + b"a" * (MIB - 1010)


def test_writers_with_o_dsync_beside_passed_through_readers(m, store):
    (m.path / "f").write_bytes(b"0" * MIB)
    r = os.open(m.path / "f", os.O_RDONLY)
    w, rw = os.open(m.path / "f", os.O_WRONLY | os.O_DSYNC), os.open(m.path / "f", os.O_RDWR | os.O_SYNC)
    io = m.info("f")["io"]
    for n in range(1, 4):
        for fd, off in (w, n), (rw, MIB - n), (w, 2 * MIB + n):
            assert os.pwrite(fd, b"%d" % n, off) == 1
            assert os.pread(r, 1, off) == os.pread(rw, 1, off) == b"%d" % n
        m.kill_worker()
        assert os.fstat(r).st_size == 2 * MIB + n + 1 and m.info("f")["io"] == io
    for fd in w, rw, r:
        os.close(fd)
    m.wait()
    assert store.get("f") == (m.path / "f").read_bytes() == b"0123" + b"0" * (MIB - 7) + b"321" + bytes(MIB + 1) + b"123"


def test_files_without_a_name_stay(m, store):
    with open(m.path / "f", "w+b", buffering=0) as f, open(os.open(m.path, os.O_TMPFILE | os.O_RDWR), "w+b", buffering=0) as t:
        f.write(b"x" * MIB)
        t.write(b"y" * MIB)
        os.unlink(m.path / "f")
        m.kill_worker()
        for this, byte in (f, b"x"), (t, b"y"):
            assert os.pread(this.fileno(), MIB, 0) == byte * MIB
            os.pwrite(this.fileno(), b"end", MIB)
            assert os.fstat(this.fileno()).st_size == MIB + 3 and os.fstat(this.fileno()).st_nlink == 0
        m.kill_worker()
        root = os.open("/", os.O_RDONLY)  # with it, link() is linkat(), which can follow
        os.link(f"/proc/self/fd/{t.fileno()}", m.path / "g", src_dir_fd=root, follow_symlinks=True)
        os.close(root)
    m.wait()
    assert os.listdir(m.path) == ["g"] and store.get("g") == b"y" * MIB + b"end"


def test_removed_working_directory_stays(m):
    (m.path / "d").mkdir()
    fd = os.open(m.path / "d", os.O_RDONLY | os.O_DIRECTORY)
    path = os.open(m.path / "d", os.O_PATH)
    os.rmdir(m.path / "d")
    m.kill_worker()
    assert os.listdir(fd) == []
    assert os.fstat(path).st_ino == os.fstat(fd).st_ino
    with pytest.raises(OSError) as e:
        os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    assert e.value.errno == errno.ENOENT
    os.close(fd)
    m.kill_worker()
    os.close(path)


def test_open_file_whose_bytes_are_gone_is_told_to_its_programs_only(make_mount, store):
    """What cannot be taken over is refused, in each call for it, by a worker that serves all others."""
    m = make_mount(passthrough="off", settle="0s")
    store.put("other", b"others")
    with open(m.path / "f", "w+b", buffering=0) as w, open(m.path / "f", "rb", buffering=0) as r, open(m.path / "other", "rb", buffering=0) as other:
        w.write(bytes(100_000))
        os.fsync(w.fileno())
        for path in (m.cache / "data").rglob("*"):
            if path.is_file() and path.stat().st_size == 100_000:
                path.unlink()
        pid = m.kill_worker()
        os.posix_fadvise(r.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for call in (lambda: os.pread(r.fileno(), 10, 0), lambda: os.pread(w.fileno(), 10, 0), lambda: w.write(b"!"), lambda: os.ftruncate(w.fileno(), 5)):
            with pytest.raises(OSError) as e:
                call()
            assert e.value.errno in (errno.EBADF, errno.EIO)
        for call in (lambda: os.fsync(w.fileno()), w.close):
            with pytest.raises(OSError) as e:
                call()
            assert e.value.errno == errno.EIO
        assert os.fstat(r.fileno()).st_size == 100_000
        assert os.pread(other.fileno(), 10, 0) == b"others"
        (m.path / "new").write_bytes(b"new")
        assert m.info("f")["state"] == "quarantined"
    assert m.status()["pid"] == pid, "nothing died of it"
    assert "an open file could not be taken over" in m.log()
    assert eventually(lambda: set(store.list()) == {"new", "other"}), "nothing of it is published"


def test_scan_goes_on_where_it_was(m, store):
    names = {f"a-name-of-some-length-{i:05}" for i in range(3000)}
    for name in names:
        store.put(f"d/{name}", b"")
    seen = []
    with os.scandir(m.path / "d") as scan:
        for entry in scan:
            seen.append(entry.name)
            if len(seen) in (10, 1500):
                m.kill_worker()
    assert len(seen) == len(set(seen)) and set(seen) == names


def test_mappings_go_on(m, store):
    """Those of closed files, and one of a file that is read and written meanwhile."""
    data = random.Random(3).randbytes(4 * MIB)
    store.put("r", data)
    with open(m.path / "r", "rb") as f:
        reads = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    with open(m.path / "w", "w+b", buffering=0) as f:
        f.truncate(MIB)
        writes = mmap.mmap(f.fileno(), MIB)
    with open(m.path / "both", "w+b", buffering=0) as f:
        f.truncate(MIB)
        with mmap.mmap(f.fileno(), MIB) as both:
            writes[:4] = both[:4] = b"1234"
            m.kill_worker()
            assert reads[:] == data
            writes[4:8] = both[4:8] = b"5678"
            both.flush()
            assert os.pread(f.fileno(), 8, 0) == both[:8] == b"12345678"
            m.kill_worker()
            writes[8:12] = b"9abc"
    writes.flush()
    writes.close()
    reads.close()
    m.wait()
    assert store.get("w") == b"123456789abc" + bytes(MIB - 12)
    assert store.get("both") == b"12345678" + bytes(MIB - 8)


def test_locks_are_kept(m):
    with open(m.path / "f", "w", encoding="ascii") as a, open(m.path / "f", encoding="ascii") as b:
        fcntl.flock(a, fcntl.LOCK_EX)
        m.kill_worker()
        with pytest.raises(BlockingIOError):
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(a, fcntl.LOCK_UN)
        fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_clean_file_opened_for_writing_and_left_alone_is_not_published(m, store):
    store.put("f", b"1234")
    before = store.head("f")
    with open(m.path / "f", "rb") as f:
        assert f.read() == b"1234"
        time.sleep(0.1)  # the local file's time must be old enough to show a write
        with open(m.path / "f", "r+b"):
            m.kill_worker()
    m.wait()
    assert eventually(lambda: m.info("f")["state"] == "clean", 5), m.info("f")
    assert store.head("f") == before


def test_many_files_stay_open(m, store):
    r = random.Random(4)
    files = []
    for i in range(200):
        f = open(m.path / f"f{i}", "w+b", buffering=0)
        f.write(b"%d" % i * r.randrange(1, 5000))
        files.append(f)
    closed = files[:100]
    for f in closed:
        f.close()
    for _ in range(3):
        m.kill_worker()
    for f in files[100:]:
        f.write(b"end")
        f.close()
    m.wait()
    for i in range(200):
        got = store.get(f"f{i}")
        assert got.endswith(b"end") == (i >= 100) and got.startswith(b"%d" % i)


def test_open_files_of_an_immutable_mount_go_on(make_mount, store):
    data = random.Random(1).randbytes(3 * MIB)
    store.put("a", data)
    m = make_mount(immutable=True, metadata_ttl=None, negative_ttl=None)
    with open(m.path / "a", "rb", buffering=0) as f:
        assert f.read(1000) == data[:1000]
        m.kill_worker()
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(0)
        assert f.read(len(data)) == data
        assert os.fstat(f.fileno()).st_size == len(data)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_SYS_ADMIN")
def test_memory_tier_is_kept(make_mount, store):
    data = random.Random(4).randbytes(3 * MIB)
    store.put("f", data)
    m = make_mount(memory_cache="64M", settle="0s")
    run("pin", "--memory", m.path / "f")

    def used():
        return next(t["used_bytes"] for t in m.status()["tiers"] if t["kind"] == "memory")

    assert eventually(lambda: used() >= len(data))
    with open(m.path / "f", "rb", buffering=0) as f:
        assert f.read(10) == data[:10]
        for _ in range(2):
            m.kill_worker()
            assert used() >= len(data)
            assert os.pread(f.fileno(), len(data), 0) == data and (m.path / "f").read_bytes() == data
            assert m.status()["downloaded_bytes"] == 0


# ---- under load ----

class Program:
    """Does one thing again and again; a thread of ours, whose system calls must not fail and must tell the truth."""

    def __init__(self, path, seed):
        self.path, self.chance, self.n = path, random.Random(seed), 0

    def run(self, stop):
        while not stop.is_set():
            self.step()
            self.n += 1
        self.end()

    def end(self):
        pass

    def published(self):
        return {}


class Reader(Program):
    def __init__(self, path, seed, store):
        super().__init__(path, seed)
        self.data = self.chance.randbytes(3 * MIB)
        store.put("read", self.data)
        assert eventually((path / "read").exists)  # the root may have been listed before
        self.fd = None

    def step(self):
        if self.fd is None or self.chance.random() < 0.2:
            self.end()
            self.fd = os.open(self.path / "read", os.O_RDONLY)
        at, size = self.chance.randrange(3 * MIB), self.chance.randrange(200000)
        assert os.pread(self.fd, size, at) == self.data[at:at + size]

    def end(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Patcher(Program):
    """Writes anywhere into one file that stays open."""

    def __init__(self, path, seed):
        super().__init__(path, seed)
        self.want = bytearray(MIB)
        self.fd = os.open(path / "patched", os.O_RDWR | os.O_CREAT)
        os.truncate(self.fd, MIB)

    def step(self):
        at, data = self.chance.randrange(MIB - 5000), self.chance.randbytes(self.chance.randrange(1, 5000))
        assert os.pwrite(self.fd, data, at) == len(data)
        self.want[at:at + len(data)] = data
        at = self.chance.randrange(MIB - 5000)
        assert os.pread(self.fd, 5000, at) == self.want[at:at + 5000]
        if self.chance.random() < 0.1:
            os.fsync(self.fd)
            assert os.fstat(self.fd).st_size == MIB

    def end(self):
        os.close(self.fd)

    def published(self):
        return {"patched": bytes(self.want)}


class Appender(Program):
    """Log files: appended to, closed, looked at, and opened again."""

    def __init__(self, path, seed):
        super().__init__(path, seed)
        self.logs = {f"log{i}": bytearray() for i in range(3)}
        for name in self.logs:
            (path / name).touch()

    def step(self):
        name, want = self.chance.choice(list(self.logs.items()))
        with open(self.path / name, "ab", buffering=0) as f:
            for _ in range(self.chance.randrange(1, 5)):
                data = self.chance.randbytes(self.chance.randrange(1, 3000))
                assert f.write(data) == len(data)
                want += data
        assert (self.path / name).stat().st_size == len(want)
        assert (self.path / name).read_bytes() == want

    def published(self):
        return {name: bytes(want) for name, want in self.logs.items()}


class Scanner(Program):
    def __init__(self, path, seed, store):
        super().__init__(path, seed)
        self.names = sorted(f"file-{i:04}" for i in range(500))
        for name in self.names:
            store.put(f"many/{name}", b"12345")
        assert eventually((path / "many").exists)

    def step(self):
        assert sorted(os.listdir(self.path / "many")) == self.names
        assert (self.path / "many" / self.chance.choice(self.names)).stat().st_size == 5
        assert not (self.path / "many" / f"none{self.n}").exists()


class Mapper(Program):
    def __init__(self, path, seed):
        super().__init__(path, seed)
        self.want = bytearray(MIB)
        with open(path / "mapped", "w+b") as f:
            f.truncate(MIB)
            self.view = mmap.mmap(f.fileno(), MIB)

    def step(self):
        at = self.chance.randrange(MIB - 100)
        self.view[at:at + 8] = self.want[at:at + 8] = self.n.to_bytes(8, "big")
        at = self.chance.randrange(MIB - 100)
        assert self.view[at:at + 100] == self.want[at:at + 100]
        if self.n % 100 == 0:
            self.view.flush()
        time.sleep(0.001)

    def end(self):
        self.view.close()

    def published(self):
        return {"mapped": bytes(self.want)}


class Namer(Program):
    """Makes, moves, exchanges, links and removes names of files, there or not: each call is carried out once, or refused as it has to be."""
    NAMES = [f"n{i}" for i in range(6)]

    def __init__(self, path, seed):
        super().__init__(path / "names", seed)
        self.path.mkdir()
        self.files = {}  # name -> its bytes, of each file its own: names of one file have the same object

    def step(self):
        a, b = self.chance.sample(self.NAMES, 2)
        self.chance.choice((self.create, self.create, self.rename, self.rename, self.exchange, self.link, self.unlink))(a, b)
        self.check(a)
        self.check(b)
        assert sorted(os.listdir(self.path)) == sorted(self.files)

    def done(self, call, *names, error=None):
        """Carries it out; False: it was refused with that error, as it had to be."""
        paths = [self.path / name for name in names]
        if not error:
            call(*paths)
            return True
        with pytest.raises(error):
            call(*paths)
        return False

    def create(self, a, _):
        data = b"%d " % self.n + self.chance.randbytes(self.chance.choice((10, 5000, 200_000)))

        def make(path):
            with open(path, "xb", buffering=0) as f:
                assert f.write(data) == len(data)

        if self.done(make, a, error=FileExistsError if a in self.files else None):
            self.files[a] = data
            self.done(make, a, error=FileExistsError)

    def rename(self, a, b):
        if self.done(os.rename, a, b, error=self.absent(a)) and self.files[a] is not self.files.get(b):
            self.files[b] = self.files.pop(a)

    def exchange(self, a, b):
        if self.done(exchange, a, b, error=self.absent(a, b)):
            self.files[a], self.files[b] = self.files[b], self.files[a]

    def link(self, a, b):
        if self.done(os.link, a, b, error=self.absent(a) or (FileExistsError if b in self.files else None)):
            self.files[b] = self.files[a]

    def unlink(self, a, _):
        if self.done(os.unlink, a, error=self.absent(a)):
            del self.files[a]

    def absent(self, *names):
        return None if set(names) <= set(self.files) else FileNotFoundError

    def check(self, name):
        if name in self.files:
            data = self.files[name]
            assert (self.path / name).read_bytes() == data
            assert (self.path / name).stat().st_nlink == sum(other is data for other in self.files.values())
        else:
            assert not (self.path / name).exists()

    def published(self):
        return {f"names/{name}": data for name, data in self.files.items()}


CYCLES = 300 if NIGHT else 6 if QUICK else 25


def upgrade(m):
    """To the same program. True if another worker serves."""
    before = m.status()["pid"]
    run("upgrade", m.path)
    return m.status()["pid"] != before


def test_programs_notice_nothing_of_kills(m, store):
    """Nor of upgrades: every third worker makes room for the next one."""
    namer = Namer(m.path, 6)
    programs = [Reader(m.path, 1, store), Patcher(m.path, 2), Appender(m.path, 3), Scanner(m.path, 4, store), Mapper(m.path, 5), namer]
    stop = threading.Event()
    joins = [in_thread(lambda p=p: p.run(stop)) for p in programs]
    chance = random.Random(int(os.environ.get("SLUICE_SEED", "11")))
    try:
        for i in range(CYCLES):
            time.sleep(chance.uniform(0.02, 0.7))
            assert upgrade(m) if i % 3 == 2 else m.kill_worker(), "the same worker serves"
    finally:
        stop.set()
        for join in joins:
            join()
    assert all(p.n > 0 for p in programs)
    m.wait()
    for p in programs:
        for name, want in p.published().items():
            assert store.get(name) == want, name
    assert set(store.list("names/")) == set(namer.published())
    assert m.status()["conflicts"] == 0


WRITER_PAST = """
import mmap, os, sys
with open("d/f", "wb", buffering=0) as f, open("slow", "rb") as slow, mmap.mmap(slow.fileno(), 0, prot=mmap.PROT_READ) as source:
    if sys.argv[1] == "closed":
        f.write(b"x")
        os.close(os.dup(f.fileno()))
        f.seek(0)
    print("writes", flush=True)
    f.write(source)
"""


@pytest.mark.parametrize("before,what", [("new", "open"), ("new", "rename"), ("closed", "open"), ("closed", "rename"), ("closed", "nothing")])
def test_worker_can_die_while_a_program_writes_past_it(make_mount, store, before, what):
    """The kernel holds the cache file's lock for the whole of a write(), and this one waits for bytes of another file, which only a worker gives. closed: by another descriptor, before."""
    store.put("slow", bytes(4 * MIB))
    m = make_mount(passthrough="on", settle="0s", open_fill="0", prefetch="off", fault="op=get,key=slow,action=delay:5s")
    if not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    (m.path / "d").mkdir()
    program = subprocess.Popen(["/usr/bin/python3", "-c", WRITER_PAST, before], cwd=m.path, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "writes\n"
        time.sleep(1)
        works = {"open": lambda: os.close(os.open(m.path / "d/f", os.O_WRONLY)), "rename": lambda: os.rename(m.path / "d", m.path / "e"), "nothing": lambda: None}
        work = in_thread(works[what])
        time.sleep(1)
        assert m.kill_worker()
        assert program.wait(60) == 0
        work()
    finally:
        program.kill()
    assert (m.path / ("e/f" if what == "rename" else "d/f")).read_bytes() == bytes(4 * MIB)


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_times_of_open_files_go_on(make_mount, passthrough):
    """That of the last write, or the one that was set since."""
    m = make_mount(passthrough=passthrough, settle="0s", metadata_ttl="0s")
    plain, written, named = [m.path / name for name in ("plain", "written", "named")]
    begin = time.time() + 0.2

    def look():
        for path in (plain, written):
            st = path.stat()
            assert begin <= st.st_mtime <= st.st_ctime < time.time() + 1
        assert named.stat().st_mtime == 1000

    with open(plain, "wb", buffering=0) as a, open(written, "wb", buffering=0) as b, open(named, "wb", buffering=0) as c:
        for f in (a, b, c):
            f.write(b"1")
        os.utime(b.fileno(), (1000, 1000))
        time.sleep(0.3)  # the clock of files ticks slowly
        for _ in range(2):
            for f in (a, b, c):
                f.write(b"2")
            os.utime(c.fileno(), (1000, 1000))
            look()
        for _ in range(2):
            m.kill_worker()
            look()
    look()
