"""A worker dies between carrying out a request and answering it: the program sees it carried out once. Needs a build with test points."""
import ctypes
import errno
import os
import random
import signal

import pytest
from crash_file import CrashFile
from mounts import MIB, POINTS, eventually, in_thread, is_gone

NOREPLACE, EXCHANGE = 1, 2
FALLOC_ZERO_RANGE = 16
libc = ctypes.CDLL(None, use_errno=True)


def check_call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def renameat2(old, new, flags):
    check_call(libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags))


@pytest.fixture(params=["on", "off"], name="m")
def _mount(request, make_mount, base):
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    m = make_mount(start=False, passthrough=request.param, settle="0s", log_level="debug", free_space="1M")
    m.program = POINTS
    m.crash = CrashFile(base / "crash")
    m.env["SLUICE_CRASH_FILE"] = str(m.crash.path)
    m.mount()
    if request.param == "on" and not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    return m


def worker_of(m):
    return m.status()["pid"]


def dying(m, point, work, deaths=1):
    """The result of work, a call into the mount of whose request a worker after the other dies just before its reply."""
    before = worker_of(m)
    m.crash.arm(point, again=deaths - 1)
    result = in_thread(work)()
    assert m.crash.fired() == point and not m.crash.armed(), "nobody died"
    assert worker_of(m) != before and is_gone(before)
    return result


def close(fd):
    os.close(fd)
    return fd


def make(m, name, data=b""):
    (m.path / name).write_bytes(data)
    return m.path / name


def test_names_are_made_once(m, store):
    p = m.path
    (p / "s").mkdir()
    f = make(m, "f", b"data")
    dying(m, "reply_node", lambda: os.mkdir(p / "d"))
    dying(m, "reply_node", lambda: os.mkdir(p / "d/twice"), deaths=2)
    dying(m, "reply_node", lambda: os.symlink("f", p / "d/l"))
    dying(m, "reply_node", lambda: os.mkfifo(p / "d/p"))
    dying(m, "reply_node", lambda: os.mknod(p / "d/r", 0o100644))
    dying(m, "reply_link", lambda: os.link(f, p / "d/g"))
    assert sorted(os.listdir(p / "d")) == ["g", "l", "p", "r", "twice"]
    assert os.readlink(p / "d/l") == "f" and f.stat().st_nlink == 2 and os.listdir(p / "d/twice") == []
    with pytest.raises(FileExistsError):  # a second call is not the same request
        os.mkdir(p / "d")
    m.wait()
    assert store.get("d/g") == b"data" and store.get("d/r") == b""


@pytest.mark.parametrize("point", ["reply_create", "create_unopened"])
def test_files_are_created_once(m, store, point):
    p, flags = m.path, os.O_CREAT | os.O_EXCL
    for i, deaths in enumerate((1, 2)):
        fd = dying(m, point, lambda i=i: os.open(p / f"w{i}", flags | os.O_RDWR, 0o640), deaths)
        os.write(fd, b"written")
        assert os.pread(fd, 100, 0) == b"written"
        os.close(fd)
    dying(m, point, lambda: close(os.open(p / "r", flags | os.O_RDONLY)))
    m.wait()  # nothing counts as open
    assert store.get("w0") == store.get("w1") == b"written" and store.get("r") == b""
    assert (p / "w0").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(p)) == ["r", "w0", "w1"]


def test_file_without_a_name_is_created_once(m, store):
    with open(dying(m, "reply_create", lambda: os.open(m.path, os.O_TMPFILE | os.O_RDWR)), "w+b", buffering=0) as f:
        f.write(b"data")
        root = os.open("/", os.O_RDONLY)
        dying(m, "reply_link", lambda: os.link(f"/proc/self/fd/{f.fileno()}", m.path / "g", src_dir_fd=root, follow_symlinks=True))
        os.close(root)
    m.wait()
    assert os.listdir(m.path) == ["g"] and store.get("g") == b"data"


def test_names_are_removed_once(m, store):
    p = m.path
    store.put("d/old", b"1")
    for name in ("d/a", "d/b"):
        make(m, name)
    (p / "e").mkdir()
    m.wait()
    dying(m, "reply_unlink", (p / "d/a").unlink)
    dying(m, "reply_unlink", (p / "d/b").unlink, deaths=2)
    dying(m, "reply_unlink", (p / "d/old").unlink)
    dying(m, "reply_rmdir", (p / "d").rmdir)
    dying(m, "reply_rmdir", (p / "e").rmdir, deaths=2)
    assert os.listdir(p) == []
    m.wait()
    assert not store.list()


def test_names_move_once(m, store):
    p = m.path
    make(m, "a", b"a")
    make(m, "b", b"b")
    (p / "d").mkdir()
    make(m, "d/f", b"f")
    dying(m, "reply_rename", lambda: os.rename(p / "a", p / "d/a"))
    dying(m, "reply_rename", lambda: renameat2(p / "d/a", p / "c", NOREPLACE), deaths=2)
    dying(m, "reply_rename", lambda: renameat2(p / "b", p / "c", EXCHANGE))
    assert (p / "b").read_bytes() == b"a" and (p / "c").read_bytes() == b"b"
    dying(m, "reply_rename", lambda: renameat2(p / "b", p / "c", EXCHANGE), deaths=2)
    assert (p / "b").read_bytes() == b"b" and (p / "c").read_bytes() == b"a"
    dying(m, "reply_rename", lambda: os.rename(p / "d", p / "e"))
    with pytest.raises(FileExistsError):
        renameat2(p / "b", p / "c", NOREPLACE)
    dying(m, "reply_rename", lambda: os.rename(p / "b", p / "c"))
    assert sorted(os.listdir(p)) == ["c", "e"]
    m.wait()
    assert store.get("c") == b"b" and store.get("e/f") == b"f"
    assert sorted(key for key in store.list() if not key.endswith("/")) == ["c", "e/f"]


def test_attributes_change_once(m):
    f = make(m, "f", b"x")
    dying(m, "reply_setxattr", lambda: os.setxattr(f, "user.a", b"1", os.XATTR_CREATE))
    dying(m, "reply_setxattr", lambda: os.setxattr(f, "user.a", b"2", os.XATTR_REPLACE), deaths=2)
    assert os.getxattr(f, "user.a") == b"2"
    dying(m, "reply_removexattr", lambda: os.removexattr(f, "user.a"))
    with pytest.raises(OSError) as e:
        os.getxattr(f, "user.a")
    assert e.value.errno == errno.ENODATA


def test_bytes_are_written_once(m, store):
    """These may be carried out twice: they say where, and the kernel lets nobody else write meanwhile."""
    p, data = m.path, random.Random(4).randbytes(MIB)
    make(m, "f", b"one")
    make(m, "g", b"one")
    dying(m, "reply_setattr", lambda: os.truncate(p / "f", 2))
    dying(m, "reply_open", lambda: close(os.open(p / "g", os.O_WRONLY | os.O_TRUNC)), deaths=2)
    with open(p / "f", "r+b", buffering=0) as f, open(p / "f", "ab", buffering=0) as a:
        dying(m, "reply_setattr", lambda: f.truncate(1))
        if not m.status()["passthrough"]:
            dying(m, "reply_write", lambda: a.write(b"two"))
            dying(m, "reply_write", lambda: a.write(b"three"), deaths=2)
        else:
            a.write(b"twothree")
        assert os.fstat(f.fileno()).st_size == 9
        dying(m, "reply_fallocate", lambda: check_call(libc.fallocate(f.fileno(), FALLOC_ZERO_RANGE, ctypes.c_long(1), ctypes.c_long(2))))
        dying(m, "reply_fallocate", lambda: os.posix_fallocate(f.fileno(), 0, 12))
    make(m, "from", data)
    with open(p / "from", "rb", buffering=0) as f, open(p / "to", "wb", buffering=0) as t:
        n = dying(m, "reply_copy", lambda: os.copy_file_range(f.fileno(), t.fileno(), MIB))
        assert n == MIB == os.fstat(t.fileno()).st_size
    m.wait()
    assert store.get("f") == b"o\0\0othree\0\0\0" and store.get("to") == data and store.get("g") == b""


def test_file_is_cut_once_by_who_opens_it(m, store):
    """Nobody else is kept from writing meanwhile: what comes after the cut stays."""
    if not m.status()["passthrough"]:
        pytest.skip("no writes while nobody serves")
    path, supervisor = m.path / "f", m.status()["supervisor_pid"]
    with open(path, "w+b", buffering=0) as f:
        f.write(b"before")
        os.kill(supervisor, signal.SIGSTOP)
        try:
            m.crash.arm("reply_open")
            cut = in_thread(lambda: close(os.open(path, os.O_WRONLY | os.O_TRUNC)))
            assert eventually(lambda: m.crash.fired() == "reply_open")
            os.pwrite(f.fileno(), b"after", 0)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        cut()
        assert path.read_bytes() == b"after"
    m.wait()
    assert store.get("f") == b"after"


def test_records_go_when_all_is_answered(m):
    dying(m, "reply_node", lambda: os.mkdir(m.path / "d"), deaths=2)
    assert eventually(lambda: (m.path / "none").exists() or "all that was sent again is answered records=1" in m.log())
