"""What a program does to a file that the kernel writes by itself has the same outcome as when every write goes through the daemon."""
import mmap
import os
import subprocess
import sys
import threading
import time

import pytest
from mounts import MIB, eventually, in_thread, run, sh
from test_passthrough import Mapping, blob


@pytest.fixture(params=["on", "off"])
def both(make_mount, request):
    return lambda **kw: make_mount(passthrough=request.param, **kw)


def used(m):
    return int(sh(f"du -s --block-size=1 {m.cache}/data", check=False).stdout.split()[0])  # what goes meanwhile is an error to it


def test_space_of_an_unlinked_file_comes_back(both):
    m = both()
    before = used(m)
    with open(m.path / "t", "wb", buffering=0) as f:
        f.write(blob(1, 16 * MIB))
        os.unlink(m.path / "t")
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_space_of_a_replaced_open_file_comes_back(both):
    m = both()
    before = used(m)
    with open(m.path / "t", "wb", buffering=0) as f:
        f.write(blob(1, 16 * MIB))
        (m.path / "u").write_bytes(b"small")
        os.rename(m.path / "u", m.path / "t")
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_space_of_a_tmpfile_comes_back(both):
    m = both()
    before = used(m)
    fd = os.open(m.path, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, blob(1, 16 * MIB))
    os.close(fd)
    assert eventually(lambda: used(m) - before < MIB, 10), used(m) - before


def test_close_remote_twice(both, store):
    m = both(close="remote")
    f = open(m.path / "f", "wb", buffering=0)
    for i in range(4):
        data = blob(i, MIB)
        f.seek(0)
        f.write(data)
        os.close(os.dup(f.fileno()))
        assert store.get("f") == data, i
    f.close()


def test_close_remote_sends_a_file_once(both, store):
    m = both(close="remote")
    (m.path / "first").write_bytes(b"the store is probed at the first write")
    m.wait()
    for size in (1000, 20 * MIB):
        before = m.status()["uploaded_bytes"]
        data = blob(size, size)
        (m.path / f"f{size}").write_bytes(data)
        m.wait()
        assert store.get(f"f{size}") == data
        assert m.status()["uploaded_bytes"] - before < 2 * size


def test_stores_into_a_mapping_after_close_remote_are_published(both, store):
    m = both(close="remote")
    with open(m.path / "f", "w+b", buffering=0) as f:
        f.write(b"a" * 100000)
        with mmap.mmap(f.fileno(), 100000) as w:
            w[0:1] = b"b"
            os.close(os.dup(f.fileno()))
            w[1:2] = b"c"
            w[90000:90001] = b"d"
    m.wait()
    want = bytearray(b"bc" + b"a" * 99998)
    want[90000:90001] = b"d"
    assert eventually(lambda: store.get("f") == bytes(want), 10)


def test_close_remote_beside_a_writer_publishes_what_the_file_was_at_one_moment(both, store):
    """Not parts of before a write beside parts of after it: all of them are looked at again when they are stored."""
    m = both(close="remote", part_size="5M", max_uploads=1, fault="op=part,action=delay:100ms")
    size = 30 * MIB
    with open(m.path / "f", "w+b", buffering=0) as f:
        f.write(bytes(size))
        begun, n = threading.Event(), 0

        def write():
            nonlocal n
            end = time.monotonic() + 3
            while time.monotonic() < end:
                n += 1
                os.pwrite(f.fileno(), b"%8d" % n, 0)
                os.pwrite(f.fileno(), b"%8d" % n, size - 8)
                begun.set()
        join = in_thread(write)
        assert begun.wait(10)
        os.close(os.dup(f.fileno()))
        got = store.get("f")
        first, last = (int(x.strip(b"\0") or 0) for x in (got[:8], got[-8:]))
        assert first - last in (0, 1), (first, last)
        assert join() is None
    m.wait()
    assert store.get("f") == b"%8d" % n + bytes(size - 16) + b"%8d" % n


def test_fsync_remote_after_stat(both, store):
    m = both(fsync="remote")
    f = open(m.path / "f", "wb", buffering=0)
    for i in range(4):
        data = blob(i, MIB)
        f.seek(0)
        f.write(data)
        os.fstat(f.fileno())
        os.stat(m.path / "f")
        os.fsync(f.fileno())
        assert store.get("f") == data, i
    f.close()


def test_close_remote_beside_an_heir_that_closes_another_handle(both, store):
    m = both(close="remote")
    code = """import subprocess, sys
f = open(sys.argv[1], "r+b", buffering=0)
sys.stdin.readline()
subprocess.run(["true"], pass_fds=[f.fileno()], stdin=subprocess.DEVNULL)
print("ran", flush=True)
sys.stdin.readline()
"""
    with open(m.path / "f", "wb", buffering=0) as f:
        other = subprocess.Popen([sys.executable, "-c", code, m.path / "f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        f.write(b"x" * 1000)
        other.stdin.write("run\n")
        other.stdin.flush()
        assert other.stdout.readline() == "ran\n"
    got = store.head("f")
    other.communicate("end\n", timeout=20)
    assert got and got["size"] == 1000


def test_close_remote_by_an_heir_whose_parent_closed_before(both, store):
    m = both(close="remote")
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_CREAT)
    r, w = os.pipe()
    heir = os.fork()
    if heir == 0:
        done = 1
        try:
            os.read(r, 1)
            os.write(fd, b"x" * 1000)
            os.close(fd)
            done = 0 if store.head("f")["size"] == 1000 else 2
        finally:
            os._exit(done)
    os.close(fd)
    os.write(w, b"1")
    assert os.waitpid(heir, 0)[1] == 0
    os.close(r)
    os.close(w)


def test_kept_and_fsync_remote(both, store):
    m = both(fsync="remote")
    data = blob(5, MIB)
    store.put("f", data)
    with open(m.path / "f", "rb") as f:
        f.read(1)
        time.sleep(0.1)
        with open(m.path / "f", "r+b") as w:
            os.fsync(w.fileno())
    m.wait()
    assert eventually(lambda: m.info("f")["state"] == "clean", 10)
    time.sleep(0.3)
    assert eventually(lambda: run("evict", m.path / "f", check=False).returncode == 0)
    assert (m.path / "f").read_bytes() == data


def test_kept_and_chmod(both, store):
    m = both()
    store.put("f", blob(5, MIB))
    with open(m.path / "f", "rb") as f:
        f.read(1)
        time.sleep(0.1)
        with open(m.path / "f", "r+b") as w:
            os.chmod(m.path / "f", 0o600)
    m.wait()
    time.sleep(1)
    m.wait()
    assert "33152" in str(store.head("f")["metadata"]) or "600" in str(store.head("f")["metadata"]), store.head("f")


def test_kept_and_swapped(both, store):
    m = both()
    a, b = blob(5, MIB), blob(6, MIB)
    store.put("a", a)
    store.put("b", b)
    with open(m.path / "a", "rb") as f, open(m.path / "b", "rb") as g:
        f.read(1), g.read(1)
        time.sleep(0.1)
        with open(m.path / "a", "r+b") as w:
            os.rename(m.path / "a", m.path / "t")
            os.rename(m.path / "b", m.path / "a")
            os.rename(m.path / "t", m.path / "b")
            time.sleep(2)
    m.wait()
    assert store.get("a") == b and store.get("b") == a
    for n in "ab":
        assert eventually(lambda: run("evict", m.path / n, check=False).returncode == 0)
    assert (m.path / "a").read_bytes() == b and (m.path / "b").read_bytes() == a


def test_kept_and_renamed(both, store):
    m = both()
    a = blob(5, 31 * MIB)
    store.put("a", a)
    with open(m.path / "a", "rb") as f:
        f.read(1)
        time.sleep(0.1)
        os.rename(m.path / "a", m.path / "b")
        with open(m.path / "b", "r+b") as w:
            time.sleep(1.5)
    m.wait()
    assert store.get("b") == a
    assert eventually(lambda: run("evict", m.path / "b", check=False).returncode == 0)
    assert (m.path / "b").read_bytes() == a


def test_mapping_of_a_closed_file_outlives_the_daemon(make_mount, store):
    m = make_mount(passthrough="on")
    if not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    w = Mapping(m.path / "m.bin", MIB, writable=True, create=True)
    w.write(0, b"first")
    assert eventually(lambda: m.status()["mapped_files"] == 1)
    m.kill9()
    m.mount()
    time.sleep(1)
    w.write(10, b"second")
    time.sleep(1)
    local = (m.path / "m.bin").read_bytes()
    state = m.info("m.bin")["state"]
    w.close()
    assert local[10:16] == b"second"
    assert state != "clean" or store.get("m.bin") == local


def test_writer_outlives_the_daemon(make_mount, store):
    m = make_mount()
    f = open(m.path / "f", "wb", buffering=0)
    f.write(b"a" * MIB)
    os.close(os.dup(f.fileno()))
    m.kill9()
    m.mount()
    time.sleep(1)
    f.seek(0)
    try:
        f.write(b"b" * 1000)
    except OSError:
        pass
    time.sleep(1)
    local = (m.path / "f").read_bytes()
    state = m.info("f")["state"]
    try:
        f.close()
    except OSError:
        pass
    assert state != "clean" or store.get("f") == local


def test_open_for_writing_fetches_nothing(both, store):
    m = both()
    data = blob(7, 30 * MIB)
    store.put("f", data)
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_APPEND)
    cached = m.info("f")["cached_bytes"]
    os.close(fd)
    assert cached < MIB * 10, cached


def test_many_opens_in_a_cache_that_is_too_small(both, store):
    data = [blob(i, 8 * MIB) for i in range(40)]
    for i, d in enumerate(data):
        store.put(f"f{i}", d)
    m = both(cache_size="64M", free_space="1M")
    bad = []

    def read(i):
        for k in range(6):
            n = (i * 7 + k * 5) % 40
            try:
                with open(m.path / f"f{n}", "rb") as f:
                    if f.read() != data[n]:
                        bad.append(n)
                    time.sleep(0.05)
            except OSError as e:
                bad.append((n, e))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not bad


def test_open_file_once_flushed_blocks_nothing(both, store):
    m = both()
    with open(m.path / "log", "wb", buffering=0) as f:
        f.write(b"a" * 1000)
        os.close(os.dup(f.fileno()))
        f.write(b"b" * 1000)
        (m.path / "latest").write_text("x")
        assert eventually(lambda: store.head("latest") is not None, 10)


def test_open_file_truncated_by_its_name_blocks_nothing(both, store):
    m = both()
    with open(m.path / "log", "wb", buffering=0) as f:
        f.write(b"a" * 1000)
        os.truncate(m.path / "log", 10)
        f.write(b"b" * 1000)
        (m.path / "latest").write_text("x")
        assert eventually(lambda: store.head("latest") is not None, 10)


CHANGES = ("f.write(b'x')", "f.truncate(1)", "open(sys.argv[1], 'wb')", "os.posix_fallocate(f.fileno(), 0, 8192)",
           "os.copy_file_range(os.open(sys.argv[1] + '.from', os.O_RDONLY), f.fileno(), 2)")


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
@pytest.mark.parametrize("beside_a_reader", [True, False])
def test_a_change_by_another_user_takes_setuid_away(both, beside_a_reader):
    m = both(allow_other=True)
    for i, change in enumerate(CHANGES):
        path = m.path / f"{i}"
        for p in path, path.with_suffix(".from"):
            p.write_bytes(b"data")
            os.chmod(p, 0o6777)
        m.wait()
        with open(path if beside_a_reader else os.devnull, "rb"):
            code = f"import os, sys; f = open(sys.argv[1], 'r+b', buffering=0); {change}"
            sh(f'setpriv --reuid 65534 --clear-groups {sys.executable} -c "{code}" {path}')
            assert os.stat(path).st_mode & 0o6000 == 0, change
