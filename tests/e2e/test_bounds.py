"""Nothing waits for ever: with a store that takes requests and never answers every operation ends, and so does every program that is to."""
import errno
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

import lake
import pytest
from mounts import MIB, ROOT, SLUICE, eventually, run

OP_TIMEOUT_S = 3
# What is promised: whatever waits for the store ends so soon, a program that is killed, and what needs no store.
END_S, KILL_S, AT_ONCE_S = OP_TIMEOUT_S + 5, 2, 1
AT_ONCE = ("statfs", "readdir of what is known")
HANG_S = 30  # much longer than all of these; what takes that long hangs
BIG = 40 * MIB
OPS = re.findall(r"^OP\((\w+)\)", (ROOT / "fs/ops.def").read_text(), re.M)
# Whom nobody waits for: the mount itself, and what the kernel says by itself when all is over.
NOT_WAITED_FOR = {"init", "destroy", "forget", "forget_multi", "release", "releasedir"}


@pytest.fixture
def store(base):
    made = lake.Lake()
    yield made
    made.remove()


def program(m, code):
    """A program that says "go", does its one operation, and ends with its errno, 0, or by a signal."""
    head = f"""
import mmap, os, signal, subprocess, sys
P = {str(m.path)!r}
def go():
    print("go", flush=True)
try:
"""
    tail = """
except OSError as e:
    sys.stdout.flush()
    os._exit(e.errno)
os._exit(0)
"""
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    p = subprocess.Popen([sys.executable, "-c", head + body + tail], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "go\n", p.stderr.read()
    p.began = time.monotonic()
    p.watch = threading.Thread(target=note_end, args=(p, os.pidfd_open(p.pid)), daemon=True)
    p.watch.start()
    return p


def note_end(p, pidfd):
    if select.select([pidfd], [], [], 10 * HANG_S)[0]:
        p.ended = time.monotonic()
    os.close(pidfd)


def seconds(p, since=None):
    """From its "go", or since then, to its end."""
    p.watch.join(HANG_S)
    return p.ended - (since or p.began)


@pytest.fixture
def tell(capsys):
    """Shows what was measured, whether or not the test fails, and gives the most."""
    def show(what, figures):
        most = max(figures, key=figures.get)
        with capsys.disabled():
            print(f"\n{what}: {figures[most]:.2f} s at most ({most})")
        return figures[most]
    return show


def name_of(code):
    return "ok" if code == 0 else signal.Signals(-code).name if code < 0 else errno.errorcode.get(code, str(code))


# What waits for the store, and how it may end while that does not answer. The first word is the operation.
BLOCKED = {
    "open": ("go(); open(P + '/d/small', 'rb').read()", {"ETIMEDOUT"}),
    "read": ("f = os.open(P + '/d/big', os.O_RDONLY); go(); os.pread(f, 100, 0)", {"ETIMEDOUT"}),
    "read at the end": ("f = os.open(P + '/d/big2', os.O_RDONLY); go(); os.pread(f, 100, 39 << 20)", {"ETIMEDOUT"}),
    "read past the page cache": ("f = os.open(P + '/d/big3', os.O_RDONLY | os.O_DIRECT); b = mmap.mmap(-1, 1 << 20); go(); os.preadv(f, [b], 0)",
                    {"ETIMEDOUT"}),
    "read by a fault": ("f = open(P + '/d/big4', 'rb'); b = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); go(); b[20 << 20]", {"SIGBUS"}),
    "readdir": ("go(); os.listdir(P + '/unlisted')", {"ETIMEDOUT"}),
    "readdirplus": ("go(); [x.stat() for x in os.scandir(P + '/unlisted9')]", {"ETIMEDOUT"}),
    "rmdir": ("go(); os.rmdir(P + '/unlisted10')", {"ETIMEDOUT"}),
    "mknod": ("go(); os.mknod(P + '/unlisted11/new')", {"ETIMEDOUT"}),
    "link": ("go(); os.link(P + '/e2/known', P + '/unlisted12/new')", {"ETIMEDOUT"}),
    "readlink": ("go(); os.readlink(P + '/unlisted13/name')", {"ETIMEDOUT"}),
    "setxattr": ("go(); os.setxattr(P + '/unlisted14/name', 'user.x', b'x')", {"ETIMEDOUT"}),
    "listxattr": ("go(); os.listxattr(P + '/unlisted15/name')", {"ETIMEDOUT"}),
    "removexattr": ("go(); os.removexattr(P + '/unlisted16/name', 'user.x')", {"ETIMEDOUT"}),
    "lookup": ("go(); os.stat(P + '/unlisted2/name')", {"ETIMEDOUT"}),
    "create": ("go(); open(P + '/unlisted3/new', 'wb')", {"ETIMEDOUT"}),
    "mkdir": ("go(); os.mkdir(P + '/unlisted4/new')", {"ETIMEDOUT"}),
    "symlink": ("go(); os.symlink('x', P + '/unlisted5/new')", {"ETIMEDOUT"}),
    "rename": ("go(); os.rename(P + '/e/known', P + '/unlisted6/new')", {"ETIMEDOUT"}),
    "unlink": ("go(); os.unlink(P + '/unlisted7/name')", {"ETIMEDOUT"}),
    "getxattr": ("go(); os.getxattr(P + '/unlisted8/name', 'user.sluice.etag')", {"ETIMEDOUT"}),
    "write": ("f = os.open(P + '/d/big5', os.O_RDWR); go(); os.pwrite(f, b'x' * 10, 100)", {"ETIMEDOUT"}),
    "copy_file_range": ("f = os.open(P + '/d/big6', os.O_RDONLY); t = os.open(P + '/d/copy', os.O_RDWR | os.O_CREAT); go(); "
             "os.copy_file_range(f, t, 32 << 20)", {"ETIMEDOUT"}),
}

# What is answered all the same, and at once.
SERVED = {
    "statfs": "go(); os.statvfs(P)",
    "readdir of what is known": "go(); assert len(os.listdir(P + '/d')) > 5",
    "getattr": "go(); os.stat(P + '/d/known')",
    "opendir": "go(); os.open(P + '/d', os.O_RDONLY | os.O_DIRECTORY)",
    "setattr of what is known": "go(); os.chmod(P + '/d/known', 0o600); os.utime(P + '/d/known')",
    "getxattr of what is known": "go(); os.getxattr(P + '/d/known', 'user.sluice.etag')",
    "setxattr of what is known": "go(); os.setxattr(P + '/d/mode', 'user.x', b'x'); os.listxattr(P + '/d/mode'); os.removexattr(P + '/d/mode', 'user.x')",
    "read of what is here": "go(); assert open(P + '/d/cached', 'rb').read() == b'cached'",
    "create, write and flush": "go(); open(P + '/d/mine', 'wb').write(b'x')",
    "tmpfile": "go(); os.write(os.open(P + '/d', os.O_TMPFILE | os.O_RDWR), b'x')",
    "fsync": "f = os.open(P + '/d/synced', os.O_WRONLY | os.O_CREAT); os.write(f, b'x'); go(); os.fsync(f); os.close(f)",
    "fsyncdir": "f = os.open(P + '/d', os.O_RDONLY); go(); os.fsync(f)",
    "mkdir and rmdir": "go(); os.mkdir(P + '/d/dir'); os.rmdir(P + '/d/dir')",
    "mknod, link, symlink and readlink": "go(); os.mknod(P + '/d/node'); os.link(P + '/d/node', P + '/d/link'); os.symlink('x', P + '/d/sym'); os.readlink(P + '/d/sym')",
    "rename of what is known": "go(); os.rename(P + '/d/here', P + '/d/there')",
    "unlink of what is known": "go(); os.unlink(P + '/d/gone')",
    "setattr of a size": "go(); os.truncate(P + '/d/cut', 5); os.truncate(P + '/d/big7', 20 << 20 | 5)",
    "fallocate": "f = os.open(P + '/d/big8', os.O_RDWR); go(); os.posix_fallocate(f, 0, 1 << 20)",
    "lseek": "f = os.open(P + '/d/big9', os.O_RDONLY); go(); os.lseek(f, 0, os.SEEK_DATA); os.lseek(f, 0, os.SEEK_HOLE)",
    "status": f"go(); subprocess.run([{str(SLUICE)!r}, 'status', '--json', P], check=True, stdout=subprocess.DEVNULL)",
}


def fill(store):
    for i in range(1, 17):
        store.put(f"unlisted{i if i > 1 else ''}/name", b"x")
    big = os.urandom(BIG)
    for name in ("big", *(f"big{i}" for i in range(2, 10))):
        store.put(f"d/{name}", big)
    store.put("d/small", os.urandom(70000))
    for name in ("e", "e2"):
        store.put(f"{name}/known", b"x")  # the kernel locks the directory while it looks for the new name
    for name in ("known", "cached", "here", "gone", "cut", "mode"):
        store.put(f"d/{name}", b"cached")


def prepare(make_mount, store, **options):
    fill(store)
    m = make_mount(metadata_ttl="1h", **options)
    assert len(os.listdir(m.path)) >= 19
    assert len(os.listdir(m.path / "d")) >= 15 and os.listdir(m.path / "e") == os.listdir(m.path / "e2") == ["known"]
    (m.path / "d/cached").read_bytes()
    store.black_hole()
    return m


@pytest.fixture
def one_processor():
    """Of what is started meanwhile: one thread at a time reads requests then."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_an_open_that_waits_holds_up_nobody_on_one_processor(one_processor, make_mount, store):
    m = prepare(make_mount, store, op_timeout="10m")
    waiting = [program(m, BLOCKED["open"][0]) for _ in range(3)]
    for code in SERVED.values():
        p = program(m, code)
        assert p.wait(HANG_S) == 0, (code, p.stderr.read())
    assert all(p.poll() is None for p in waiting)
    store.answer_again()
    assert [p.wait(HANG_S) for p in waiting] == [0, 0, 0]


def test_every_operation_is_among_those_that_are_tried():
    tried = {name for row in (*BLOCKED, *SERVED, *REMOTE) for name in re.findall(r"\w+", row)}
    assert set(OPS) - NOT_WAITED_FOR <= tried


def test_every_operation_ends_while_the_store_is_a_black_hole(make_mount, store, tell):
    m = prepare(make_mount, store, op_timeout=f"{OP_TIMEOUT_S}s")
    running, served = {name: program(m, code) for name, (code, _) in BLOCKED.items()}, {}
    for name, code in SERVED.items():
        p = program(m, code)
        assert p.wait(HANG_S) == 0, (code, p.stderr.read())
        served[name] = seconds(p)
    ends = {name: name_of(p.wait(HANG_S)) for name, p in running.items()}
    assert {name: end for name, end in ends.items() if end not in BLOCKED[name][1]} == {}
    took = {name: seconds(p) for name, p in running.items()}
    assert tell("open and read that wait for a silent store, one after the other", {"open": took.pop("open")}) < 2 * END_S
    assert tell("operations that wait for a silent store", took) < END_S
    tell("operations that need no store, while it is silent", served)
    assert tell("df and ls among them", {name: served[name] for name in AT_ONCE}) < AT_ONCE_S
    store.answer_again()
    assert eventually(lambda: (m.path / "unlisted/name").exists(), 20)
    assert (m.path / "d/known").read_bytes() == b"cached"


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_that_waits_for_the_store(make_mount, store, sig, tell):
    m = prepare(make_mount, store, op_timeout="10m")
    running = {name: program(m, code) for name, (code, _) in BLOCKED.items()}
    if sig == signal.SIGINT:  # which Python handles
        running.pop("read by a fault").kill()
    time.sleep(1)  # so that they wait
    assert {name: p.returncode for name, p in running.items() if p.poll() is not None} == {}
    sent = time.monotonic()
    for p in running.values():
        p.send_signal(sig)
    ends = {name: p.wait(HANG_S) for name, p in running.items()}
    assert set(ends.values()) <= {-sig, 1, errno.EINTR}, ends  # 1: KeyboardInterrupt
    most = tell(f"programs that got {sig.name}", {name: seconds(p, sent) for name, p in running.items()})
    assert most < KILL_S or sig != signal.SIGKILL
    store.answer_again()


# Reads while alarms come that it handles. Not by Python's own calls: those are made again after EINTR.
ALARMED = """
import ctypes
c, b = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(8)
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
go(); f = c.open(os.fsencode(P + '/d/small'), os.O_RDONLY)
n = c.read(f, b, 8) if f >= 0 else -1
os._exit(0 if n == 8 else ctypes.get_errno())
"""


def test_a_handled_signal_does_not_end_a_read_but_sigint_does(make_mount, store):
    m = prepare(make_mount, store, op_timeout="10m")
    p = program(m, ALARMED)
    code = "signal.signal(signal.SIGINT, lambda *_: os._exit(99)); go(); os.listdir(P + '/unlisted')"
    q = program(m, code)
    time.sleep(1.5)
    assert p.poll() is None and q.poll() is None
    q.send_signal(signal.SIGINT)
    assert q.wait(HANG_S) == 99
    store.answer_again()
    assert p.wait(HANG_S) == 0, p.stderr.read()


# What waits until the store has it, where that is asked for.
REMOTE = {
    "fsync": "f = open(P + '/r/fsync', 'wb', buffering=0); f.write(b'fsync'); go(); os.fsync(f.fileno())",
    "fsync of parts": "f = open(P + '/r/parts', 'wb', buffering=0); f.write(b'parts' * (5 << 20)); go(); os.fsync(f.fileno())",
    "flush": "f = os.open(P + '/r/close', os.O_WRONLY | os.O_CREAT); os.write(f, b'close'); go(); os.close(f)",
    "flush of parts": "f = os.open(P + '/r/parts2', os.O_WRONLY | os.O_CREAT); os.write(f, b'parts' * (5 << 20)); go(); os.close(f)",
}


@pytest.mark.parametrize("sig", [None, signal.SIGKILL])
def test_fsync_and_close_that_wait_for_the_store_end_and_what_they_wrote_is_published_later(make_mount, store, sig, tell):
    m = prepare(make_mount, store, close="remote", fsync="remote", op_timeout="10m" if sig else f"{OP_TIMEOUT_S}s")
    os.mkdir(m.path / "r")
    running = {name: program(m, code) for name, code in REMOTE.items()}
    time.sleep(1)
    assert {name: p.returncode for name, p in running.items() if p.poll() is not None} == {}
    sent = time.monotonic() if sig else None
    for p in running.values():
        if sig:
            p.send_signal(sig)
    ends = {name: p.wait(HANG_S) for name, p in running.items()}
    assert set(ends.values()) <= ({-sig, 1, errno.EINTR} if sig else {errno.ETIMEDOUT}), ends
    took = {name: seconds(p, sent) for name, p in running.items()}
    flushes = {name: took.pop(name) for name in list(took) if name.startswith("flush")}
    killed = ", killed" if sig else ""
    assert tell(f"close that waits for a silent store{killed}", flushes) < (KILL_S if sig else END_S)
    assert tell(f"fsync that waits for a silent store, and the close at the program's end{killed}", took) < (KILL_S if sig else 2 * END_S)
    store.answer_again()
    m.wait("r")
    assert {key: len(store.get(key)) for key in store.list("r/") if key != "r/"} == {
        "r/fsync": 5, "r/parts": 25 * MIB, "r/close": 5, "r/parts2": 25 * MIB}


def test_a_removed_file_whose_name_the_store_refuses_is_waited_for_no_longer(make_mount, store):
    store.refused.add("d/bad")
    store.put("d/good", b"x")
    m = make_mount(op_timeout="3s")
    (m.path / "d/bad").write_bytes(b"never there")
    refused = run("wait", "--timeout", "60s", m.path / "d", check=False, timeout=90)
    assert refused.returncode == 1 and "needs a decision" in refused.stderr
    os.unlink(m.path / "d/bad")
    m.wait("d", timeout=60)
    assert store.list("d/") == ["d/good"]


def test_what_was_to_be_tried_again_is_after_a_crash(make_mount, store):
    store.refused.add("d/bad")
    store.put("d/good", b"x")
    m = make_mount(op_timeout="10m")
    (m.path / "d/bad").write_bytes(b"taken later")
    assert eventually(lambda: m.status()["parked"] == 1, 30), m.status()
    store.refused.clear()
    store.black_hole()
    run("publish", "--retry", m.path / "d/bad")
    m.kill9()
    store.answer_again()
    m.mount()
    m.wait("d", timeout=60)
    assert store.get("d/bad") == b"taken later"


@pytest.mark.parametrize("decision", ["skip", "retry"])
def test_what_waits_behind_a_refused_file_goes_once_that_is_decided(make_mount, store, decision):
    store.refused.add("d/shard")
    store.put("d/there", b"x")
    m = make_mount()
    (m.path / "d/shard").write_bytes(b"shard")
    (m.path / "d/latest").write_bytes(b"shard is there")
    assert eventually(lambda: m.status()["parked"] == 1)
    assert run("wait", "--timeout", "60s", m.path / "d/latest", check=False, timeout=90).returncode == 1
    assert m.info("d/latest")["blocked_by"] == "d/shard"
    assert store.list("d/") == ["d/there"]
    if decision == "skip":
        run("publish", "--skip", m.path / "d/shard")
        m.wait("d/latest")
        assert store.list("d/") == ["d/latest", "d/there"]
        assert run("evict", m.path / "d/shard", check=False).returncode == 1
        m.kill9()
        m.mount()
        assert (m.path / "d/shard").read_bytes() == b"shard", "ours stays here"
    store.refused.clear()
    if decision == "skip":  # its name's next change is published
        (m.path / "d/shard").write_bytes(b"shard")
    else:
        run("publish", "--retry", m.path / "d/shard")
    m.wait("d")
    assert {key: store.get(key) for key in store.list("d/")} == {"d/latest": b"shard is there", "d/shard": b"shard", "d/there": b"x"}
    assert m.status()["parked"] == 0
    puts = [key for verb, key, _ in store.calls if verb == "PUT" and store.objects.get(key) and key.startswith("d/")]
    assert decision == "skip" or puts[-2:] == ["d/shard", "d/latest"]


def counts(m):
    pid = m.status()["pid"]
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


def other_fds(m):
    """Those that are no sockets."""
    top, found = f"/proc/{m.status()['pid']}/fd", 0
    for fd in os.listdir(top):
        try:
            found += not os.readlink(f"{top}/{fd}").startswith("socket:")
        except FileNotFoundError:
            pass
    return found


def settled_counts(m):
    """Those that have been the same for a while."""
    last = [None] * 10

    def same():
        last[:] = last[1:] + [counts(m)]
        return len(set(last)) == 1
    assert eventually(same, 40, 0.2), last
    return last[0]


class Readers:
    """Programs that read a file each and wait for it; none is left at the end."""

    def __init__(self):
        self.running = []

    def add(self, m, numbers):
        self.running += [subprocess.Popen(["cat", m.path / f"many/{i}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL) for i in numbers]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.running:
            p.kill()
        ends = [p.wait(HANG_S) for p in self.running]
        assert set(ends) <= {-signal.SIGKILL, 0}, "0: a file that was fetched ahead before the store fell silent"


def test_hundreds_of_waiting_readers_hold_up_nobody_and_leave_nothing(make_mount, store):
    for i in range(700):
        store.put(f"many/{i}", os.urandom(70000))
    m = prepare(make_mount, store, op_timeout="10m")
    started = counts(m)
    with Readers() as waiting:  # so many that there are all idle threads and connections that it keeps
        waiting.add(m, range(100))
        assert eventually(lambda: counts(m)[0] >= started[0] + 64, 20), (started, counts(m))
    store.answer_again()
    threads, fds = settled_counts(m)
    others = other_fds(m)
    store.black_hole()
    with Readers() as waiting:
        waiting.add(m, range(100, 400))
        assert eventually(lambda: counts(m)[0] >= threads + 200, 20), counts(m)
        for code in SERVED.values():
            p = program(m, code)
            assert p.wait(HANG_S) == 0, (code, p.stderr.read())
        waiting.add(m, range(400, 700))  # more than there are threads for them
        assert eventually(lambda: counts(m)[0] >= threads + 470, 30), counts(m)
        assert program(m, SERVED["statfs"]).wait(HANG_S) == 0
        alarmed, killed = program(m, ALARMED), program(m, ALARMED)
        time.sleep(1.5)
        assert alarmed.poll() is None and killed.poll() is None, (alarmed.poll(), killed.poll())
        killed.kill()
        assert killed.wait(HANG_S) == -signal.SIGKILL
        assert alarmed.poll() is None
        m.status()
    store.answer_again()
    assert alarmed.wait(HANG_S) == 0, alarmed.stderr.read()
    assert (m.path / "many/699").stat().st_size == 70000
    # Handles for requests stay, up to 64, each with its connection and what libcurl wakes it by; all else is as it was.
    assert eventually(lambda: counts(m)[0] <= threads + 2 and counts(m)[1] <= fds + 80, 30), (threads, fds, counts(m))
    assert eventually(lambda: other_fds(m) <= others + 2, 30), (others, other_fds(m))
