"""A worker that dies under a mount: another one takes over, and programs in the mount notice a pause at most."""
import contextlib
import errno
import fcntl
import mmap
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest
from mounts import MIB, NIGHT, QUICK, SLUICE, as_nobody, eventually, is_gone, run


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


def test_next_worker_serves_what_is_there(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount()
    supervisor = m.status()["supervisor_pid"]
    assert (m.path / "d/a").read_bytes() == b"1234"
    (m.path / "mine").write_bytes(b"x" * MIB)
    workers = {m.status()["pid"]}
    for i in range(3):
        workers.add(m.kill_worker())
        assert m.status()["supervisor_pid"] == supervisor
        assert (m.path / "d/a").read_bytes() == b"1234"
        assert (m.path / "mine").read_bytes() == b"x" * MIB
        assert sorted(os.listdir(m.path)) == sorted(["d", "mine"] + [f"new{n}" for n in range(i)])
        (m.path / f"new{i}").write_bytes(b"%d" % i)
    assert len(workers) == 4
    m.wait()
    assert store.get("mine") == b"x" * MIB and store.get("new2") == b"2"
    m.umount()
    assert is_gone(supervisor) and all(map(is_gone, workers))


def test_request_that_was_taken_is_answered_by_the_next(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    join = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    m.kill_worker()
    assert join() == 4


def test_requests_that_come_while_nobody_serves_are_answered(make_mount, store):
    store.put("a", b"1234")
    m = make_mount()
    status = m.status()
    os.kill(status["supervisor_pid"], signal.SIGSTOP)
    os.kill(status["pid"], signal.SIGKILL)
    joins = [in_thread(lambda: (m.path / "a").read_bytes()), in_thread(lambda: run("status", "--json", m.path).stdout),
             in_thread(lambda: os.listdir(m.path))]
    time.sleep(0.5)
    os.kill(status["supervisor_pid"], signal.SIGCONT)
    data, text, names = (join() for join in joins)
    assert data == b"1234" and names == ["a"]
    assert str(status["pid"]) not in text


def test_worker_dies_while_the_kernel_is_told_of_a_change(make_mount, store):
    """The kernel makes who tells it wait for the directory, which a lookup holds that waits for the worker."""
    for name in ("a", "b"):
        store.put(f"d/{name}", b"1234")
    m = make_mount(fault="op=head,action=delay:4s")
    assert sorted(os.listdir(m.path / "d")) == ["a", "b"] and (m.path / "d/a").exists()
    store.delete("d/a")
    store.put("d/z", b"")  # what it is only a HEAD tells
    time.sleep(1.5)
    join = in_thread(lambda: (m.path / "d/z").stat().st_size)
    time.sleep(1.5)
    m.kill_worker()
    assert join() == 0
    assert eventually(lambda: not (m.path / "d/a").exists())


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


def test_worker_without_a_supervisor_serves_to_its_end(make_mount, store):
    m = make_mount()
    supervisor, worker = m.pids()
    os.kill(supervisor, signal.SIGKILL)
    assert eventually(lambda: m.status()["supervisor_pid"] == 0)
    (m.path / "f").write_bytes(b"12")
    assert m.status()["pid"] == worker
    m.wait()
    assert store.get("f") == b"12"
    m.umount()
    assert eventually(lambda: is_gone(worker))
    m.mount()
    assert (m.path / "f").read_bytes() == b"12"


@pytest.mark.parametrize("who", [0, 1])
def test_sigterm_to_either_process_unmounts(make_mount, who):
    m = make_mount()
    pids = m.pids()
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_CREAT)  # a mount in use is taken away as well
    os.kill(pids[who], signal.SIGTERM)
    assert eventually(lambda: all(map(is_gone, pids)))
    assert not m.is_mounted()
    with pytest.raises(OSError) as e:
        os.fsync(fd)
    assert e.value.errno == errno.ENOTCONN
    with contextlib.suppress(OSError):
        os.close(fd)
    m.mount()


def test_unmounted_from_outside(make_mount):
    m = make_mount()
    pids = m.pids()
    subprocess.run(["umount", m.path], check=True, timeout=20)
    assert eventually(lambda: all(map(is_gone, pids)))
    m.mount()


def test_worker_that_dies_again_and_again_is_given_up(make_mount, store):
    m = make_mount()
    (m.path / "f").write_bytes(b"12")
    supervisor = m.status()["supervisor_pid"]
    for _ in range(5):
        m.kill_worker()
    os.kill(m.status()["pid"], signal.SIGKILL)
    assert eventually(lambda: is_gone(supervisor))
    with pytest.raises(OSError) as e:
        os.listdir(m.path)
    assert e.value.errno == errno.ENOTCONN
    said = run("status", m.path, check=False).stderr
    assert "is not running" in said and "signal 9" in said and "given up" in said
    cleared = run("umount", m.path)
    assert "given up" in cleared.stderr and not m.is_mounted()
    m.mount()
    assert (m.path / "f").read_bytes() == b"12"
    assert "given up" not in run("status", m.path).stderr


def test_worker_that_hangs_is_replaced(make_mount, store):
    store.put("a", b"1234")
    m = make_mount(watchdog="3s")
    (m.path / "a").read_bytes()
    pid = m.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert in_thread(lambda: os.listdir(m.path))() == ["a"]
    assert is_gone(pid) and m.status()["pid"] != pid
    assert "no sign of life" in m.log()


def test_worker_that_waits_for_the_store_is_left_alone(make_mount, store):
    store.put("a", b"1234")
    m = make_mount(watchdog="3s", fault="op=get,action=delay:6s")
    pid = m.status()["pid"]
    assert (m.path / "a").read_bytes() == b"1234"
    assert m.status()["pid"] == pid


def test_start_that_fails_leaves_nothing(make_mount):
    m = make_mount(start=False, http="999.1.1.1:80")
    done = run(*m.arguments(), check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "999.1.1.1" in done.stderr
    assert not m.is_mounted()
    m.options = {}
    m.mount()


def test_foreground_is_the_supervisor(make_mount):
    m = make_mount(start=False)
    with subprocess.Popen([SLUICE, *map(str, m.arguments()), "-f"], stdin=subprocess.DEVNULL) as p:
        assert eventually(m.is_mounted)
        assert m.status()["supervisor_pid"] == p.pid
        m.kill_worker()
        (m.path / "f").write_text("x", encoding="ascii")
        p.send_signal(signal.SIGINT)
        assert p.wait(30) == 0
    assert not m.is_mounted()


def test_worker_holds_nothing_of_the_supervisors(mount):
    """What is handed down is named; whatever else would be inherited by each worker in turn."""
    pid = mount.status()["pid"]
    links = [os.readlink(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    assert sum("/dev/fuse" in link for link in links) == 1
    assert sum("memfd:" in link for link in links) == 2
    assert not any("pidfd" in link for link in links)


# ---- what programs have open ----

@pytest.fixture(params=["on", "off"])
def passing(request, make_mount):
    m = make_mount(passthrough=request.param, settle="0s")
    if request.param == "on" and not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    return m


def test_open_files_go_on(passing, store):
    m = passing
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


def test_unlinked_and_nameless_files_go_on(passing, store):
    m = passing
    with open(m.path / "u", "w+b", buffering=0) as u, open(os.open(m.path, os.O_TMPFILE | os.O_RDWR), "w+b", buffering=0) as t:
        u.write(b"123")
        t.write(b"456")
        os.unlink(m.path / "u")
        m.kill_worker()
        u.write(b"abc")
        t.write(b"def")
        assert os.pread(u.fileno(), 10, 0) == b"123abc"
        assert os.pread(t.fileno(), 10, 0) == b"456def"
        root = os.open("/", os.O_RDONLY)  # with it, link() is linkat(), which can follow
        os.link(f"/proc/self/fd/{t.fileno()}", m.path / "t", src_dir_fd=root, follow_symlinks=True)
        os.close(root)
    m.wait()
    assert os.listdir(m.path) == ["t"] and store.get("t") == b"456def"


def test_duplicate_of_a_closed_descriptor_writes_on(passing, store):
    """The close of one is no end of the file: what is published is what is there when the last one closes."""
    m = passing
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


def test_scan_goes_on_where_it_was(passing, store):
    m = passing
    names = {f"a-name-of-some-length-{i:05}" for i in range(3000)}
    for name in names:
        store.put(f"d/{name}", b"")
    seen = []
    with os.scandir(m.path / "d") as scan:
        for entry in scan:
            seen.append(entry.name)
            if len(seen) == 100:
                m.kill_worker()
    assert len(seen) == len(set(seen)) and set(seen) == names


def test_mappings_go_on(passing, store):
    m = passing
    with open(m.path / "m", "w+b", buffering=0) as f:
        f.truncate(MIB)
        with mmap.mmap(f.fileno(), MIB) as view:
            view[0:5] = b"first"
            m.kill_worker()
            view[MIB // 2:MIB // 2 + 6] = b"second"
            view.flush()
            assert os.pread(f.fileno(), 6, MIB // 2) == b"second" and view[0:5] == b"first"
    m.wait()
    data = store.get("m")
    assert data[:5] == b"first" and data[MIB // 2:MIB // 2 + 6] == b"second" and len(data) == MIB


def test_locks_are_kept(passing):
    m = passing
    with open(m.path / "f", "w", encoding="ascii") as a, open(m.path / "f", encoding="ascii") as b:
        fcntl.flock(a, fcntl.LOCK_EX)
        m.kill_worker()
        with pytest.raises(BlockingIOError):
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(a, fcntl.LOCK_UN)
        fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


def test_what_is_closed_is_published_by_the_next(make_mount, store):
    m = make_mount(fault="op=put,action=delay:1s;op=part,action=delay:1s", part_size="5M", settle="0s")
    data = random.Random(3).randbytes(12 * MIB)
    (m.path / "small").write_bytes(b"1")
    (m.path / "large").write_bytes(data)
    m.kill_worker()
    m.kill_worker()
    m.wait()
    assert store.get("small") == b"1" and store.get("large") == data


AS_NOBODY = """
cd /
worker() { "$2" status --json "$1/mnt" | sed 's/.*"pid":\\([0-9]*\\).*/\\1/'; }
"$2" mount "file://$1/lake" "$1/mnt" --cache-dir "$1/cache" --log-file "$1/log" || exit 70
exec 9>"$1/mnt/f"
old=$(worker "$@")
kill -9 $old
echo "still open" >&9
exec 9>&-
cat "$1/mnt/f"
[ $(worker "$@") != $old ] && echo "another one"
"$2" umount "$1/mnt"; echo "free: $?"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_mount_of_a_user_is_taken_over(base):
    done = as_nobody(base, AS_NOBODY)
    if done.returncode == 77:
        pytest.skip("no device can be made here")
    assert done.stdout.splitlines() == ["still open", "another one", "free: 0"], done.stdout + done.stderr


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


CYCLES = 300 if NIGHT else 6 if QUICK else 25


def test_programs_notice_nothing_of_kills(passing, store):
    m = passing
    programs = [Reader(m.path, 1, store), Patcher(m.path, 2), Appender(m.path, 3), Scanner(m.path, 4, store), Mapper(m.path, 5)]
    stop = threading.Event()
    joins = [in_thread(lambda p=p: p.run(stop)) for p in programs]
    chance = random.Random(int(os.environ.get("SLUICE_SEED", "11")))
    try:
        for _ in range(CYCLES):
            time.sleep(chance.uniform(0.02, 0.7))
            m.kill_worker()
    finally:
        stop.set()
        for join in joins:
            join()
    assert all(p.n > 0 for p in programs)
    m.wait()
    for p in programs:
        for name, want in p.published().items():
            assert store.get(name) == want, name
    assert m.status()["conflicts"] == 0


# ---- upgrade ----

SPOILT = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--worker-formats") == 0)
        return puts(FORMATS) < 0;
    return ENDING;
}
"""


def spoilt_program(base, ending):
    """Says that it could take over, and then does not."""
    formats = run("--worker-formats").stdout.strip()
    program = base / "spoilt"
    subprocess.run(["cc", "-x", "c", "-", "-o", program, f'-DFORMATS="{formats}"', f"-DENDING={ending}"], input=SPOILT, text=True,
                   check=True, timeout=60)
    return program


def copy_program(to):
    to.write_bytes(pathlib.Path(SLUICE).read_bytes())
    to.chmod(0o755)
    return to


def test_upgrade_puts_another_program_in_place(make_mount, store, base):
    store.put("a", b"1234")
    m = make_mount()
    other = copy_program(base / "other")
    before = m.status()
    done = run("upgrade", "--program", other, m.path)
    after = m.status()
    assert str(other) in done.stdout and after["program"] == str(other)
    assert after["supervisor_pid"] == before["supervisor_pid"] and after["pid"] != before["pid"] and is_gone(before["pid"])
    assert (m.path / "a").read_bytes() == b"1234"
    m.kill_worker()
    assert m.status()["program"] == str(other)
    run("upgrade", m.path)  # to the program of this command
    assert m.status()["program"] == SLUICE


def test_program_that_is_replaced_on_the_disk_serves_on(make_mount, store, base):
    store.put("a", b"1234")
    m = make_mount(start=False)
    m.program = str(copy_program(base / "mine"))
    m.mount()
    (base / "new").write_bytes(b"not a program")
    (base / "new").replace(m.program)
    m.kill_worker()
    assert (m.path / "a").read_bytes() == b"1234"


def test_unfit_program_is_refused(mount):
    before = mount.status()["pid"]
    for program, why in (("/bin/true", "cannot take over"), ("/none/there", "No such file"), ("/etc/passwd", "cannot take over")):
        done = run("upgrade", "--program", program, mount.path, check=False)
        assert done.returncode != 0 and why in done.stderr and done.stderr.count("\n") == 1
    assert mount.status()["pid"] == before


@pytest.mark.parametrize("ending", ["3", "pause()"])
def test_program_that_does_not_come_to_serve_is_given_up(make_mount, store, base, ending):
    store.put("a", b"1234")
    m = make_mount()
    before = m.status()
    done = run("upgrade", "--program", spoilt_program(base, ending), m.path, check=False)
    assert done.returncode == 1 and "did not come to serve" in done.stderr
    after = m.status()
    assert after["program"] == before["program"] and after["supervisor_pid"] == before["supervisor_pid"]
    assert (m.path / "a").read_bytes() == b"1234"


def test_upgrade_lets_requests_come_to_their_end(make_mount, store):
    store.put("d/a", b"1234")
    m = make_mount(fault="op=list,action=delay:2s")
    join = in_thread(lambda: (m.path / "d/a").stat().st_size)
    time.sleep(0.5)
    run("upgrade", m.path)
    assert join() == 4
    assert "signal 9" not in m.log()
