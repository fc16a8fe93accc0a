"""Files that the kernel reads and writes itself: what happens to the file while a program has it open or mapped must not show in a wrong byte."""
import ctypes
import errno
import hashlib
import mmap
import os
import pathlib
import subprocess
import threading
import time

import pytest
from mounts import MIB, SLUICE, eventually, run, sh


@pytest.fixture
def passed(make_mount):
    m = make_mount(passthrough="on")
    if not m.status()["passthrough"]:
        pytest.skip(f"no passthrough here: {m.status().get('passthrough_off_because')}")
    return m


def blob(seed, size):
    return hashlib.shake_128(str(seed).encode()).digest(size)


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Mapping:
    """A shared mapping that is all that is left of its open file: Python's own keeps a descriptor."""

    def __init__(self, path, size, writable=False, create=False):
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0))
        if create:
            os.ftruncate(fd, size)
        self.size = size
        self.at = LIBC.mmap(None, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), mmap.MAP_SHARED, fd, 0)
        assert self.at not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        os.close(fd)

    def read(self, off=0, size=None):
        return ctypes.string_at(self.at + off, self.size - off if size is None else size)

    def write(self, off, data):
        ctypes.memmove(self.at + off, data, len(data))

    def close(self):
        """Once more does nothing."""
        if self.at:
            LIBC.munmap(self.at, self.size)
        self.at = None


def io(m, name):
    return m.info(name)["io"]


def test_a_small_file_is_complete_and_passed_through_at_its_first_open(passed, store):
    data = blob(1, 3 * MIB)
    store.put("a.bin", data)
    with open(passed.path / "a.bin", "rb") as f:
        assert io(passed, "a.bin") == "passthrough"
        assert passed.info("a.bin")["cached_bytes"] == len(data)
        assert f.read() == data
    assert eventually(lambda: io(passed, "a.bin") == "closed")


def test_a_large_file_is_served_at_once_and_passed_through_when_complete(make_mount, store):
    m = make_mount(open_fill="1M")
    data = blob(2, 24 * MIB)
    store.put("big.bin", data)
    with open(m.path / "big.bin", "rb") as f:
        assert io(m, "big.bin") in ("direct", "cached")
        assert f.read(MIB) == data[:MIB]
        f.seek(0)
        assert f.read() == data
    assert eventually(lambda: m.info("big.bin")["cached_bytes"] == len(data))
    assert eventually(lambda: io(m, "big.bin") == "closed")
    if m.status()["passthrough"]:
        with open(m.path / "big.bin", "rb") as f:
            assert io(m, "big.bin") == "passthrough"
            assert f.read() == data


def test_who_joins_reads_as_the_others_do(passed, store):
    """The kernel refuses a file that is opened past the daemon beside one that is not: that waits until all have closed it, also where what joins could be passed through."""
    data = blob(19, 2 * MIB)
    store.put("f", data)
    with open(passed.path / "f", "r+b", buffering=0) as first:
        assert first.read() == data
        assert passed.info("f")["cached_bytes"] == len(data)
        for mode in "rb", "r+b":
            with open(passed.path / "f", mode, buffering=0) as f:
                assert io(passed, "f") == "cached"
                assert f.read() == data
    assert eventually(lambda: io(passed, "f") == "closed")
    with open(passed.path / "f", "rb", buffering=0) as first, open(passed.path / "f", "r+b", buffering=0) as f:
        assert io(passed, "f") == "passthrough"
        assert f.read() == first.read() == data


def test_who_joins_a_mapping_that_outlived_its_close_reads_as_it_does(make_mount, store):
    """Of one that goes through the daemon the kernel does not say that it was closed."""
    m = make_mount(passthrough="on", open_fill="0")
    if not m.status()["passthrough"]:
        pytest.skip(f"no passthrough here: {m.status().get('passthrough_off_because')}")
    data = blob(20, 24 * MIB)
    store.put("f", data)
    view = Mapping(m.path / "f", len(data))
    try:
        assert io(m, "f") != "passthrough"
        assert view.read() == data
        assert eventually(lambda: m.info("f")["cached_bytes"] == len(data))
        with open(m.path / "f", "rb", buffering=0) as f:
            assert io(m, "f") != "passthrough"
            assert f.read() == data
        assert io(m, "f") not in ("closed", "passthrough")
    finally:
        view.close()
    assert eventually(lambda: io(m, "f") == "closed")
    with open(m.path / "f", "rb", buffering=0) as f:
        assert io(m, "f") == "passthrough"
        assert f.read() == data


def test_a_new_file_is_written_by_the_kernel_and_streamed(make_mount, store):
    m = make_mount(part_size="5M")
    data = blob(3, 40 * MIB)
    with open(m.path / "ckpt.bin", "wb", buffering=0) as f:
        mode = io(m, "ckpt.bin")
        for off in range(0, len(data), MIB):
            f.write(data[off:off + MIB])
        assert os.fstat(f.fileno()).st_size == len(data)
        assert eventually(lambda: m.info("ckpt.bin")["uploaded_bytes"] >= 20 * MIB), "parts are stored while the file is open"
        assert "ckpt.bin" not in store.list(), "nothing half-written is visible"
    assert mode == ("passthrough" if m.status()["passthrough"] else "cached")
    m.wait()
    assert store.get("ckpt.bin") == data


def test_parts_that_were_rewritten_after_they_were_streamed_are_sent_again(make_mount, store):
    m = make_mount(part_size="5M")
    data = bytearray(blob(4, 32 * MIB))
    with open(m.path / "x.bin", "wb", buffering=0) as f:
        f.write(data)
        assert eventually(lambda: m.info("x.bin")["uploaded_bytes"] >= 20 * MIB)
        f.seek(100)
        f.write(b"header written last")
        data[100:119] = b"header written last"
    m.wait()
    assert store.get("x.bin") == bytes(data)


def test_a_mapping_that_outlives_its_close_is_waited_for(passed, store):
    m = Mapping(passed.path / "m.bin", MIB, writable=True, create=True)
    m.write(0, b"first")
    assert eventually(lambda: passed.status()["mapped_files"] == 1)
    time.sleep(1.5)
    m.write(10, b"second")
    assert store.head("m.bin") is None
    m.close()
    assert eventually(lambda: passed.status()["mapped_files"] == 0)
    passed.wait()
    got = store.get("m.bin")
    assert got[0:5] == b"first" and got[10:16] == b"second" and len(got) == MIB


def test_mapped_for_a_long_time_blocks_nothing(passed, store):
    m = Mapping(passed.path / "m.bin", MIB, writable=True, create=True)
    assert eventually(lambda: passed.status()["mapped_files"] == 1)
    (passed.path / "latest").write_text("after")
    assert eventually(lambda: store.head("latest") is not None)
    m.close()
    passed.wait()


def test_eviction_under_a_mapping_of_a_closed_file(passed, store):
    data = blob(5, 4 * MIB)
    store.put("w.safetensors", data)
    m = Mapping(passed.path / "w.safetensors", len(data))
    assert m.read(0, 100) == data[:100]
    assert eventually(lambda: run("evict", passed.path / "w.safetensors", check=False).returncode == 0)
    assert passed.info("w.safetensors")["cached_bytes"] == 0
    assert m.read() == data, "the mapping keeps the dropped file"
    assert (passed.path / "w.safetensors").read_bytes() == data
    m.close()


def test_eviction_gives_the_space_back(make_mount, store, base):
    """On a disk that nobody else writes to: the kernel's backing id would keep the blocks of a file that has no name any more."""
    image, disk = base / "image", base / "disk"
    disk.mkdir()
    if sh(f"truncate -s 256M {image} && mkfs.ext4 -q {image} && mount -o loop {image} {disk}", check=False).returncode:
        pytest.skip("no loop devices here")
    try:
        m = make_mount(cache_dir=disk / "cache")
        data = blob(6, 16 * MIB)
        store.put("big", data)
        assert (m.path / "big").read_bytes() == data
        free = lambda: os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize
        assert eventually(lambda: m.info("big")["io"] == "closed")
        os.sync()
        before = free()
        assert eventually(lambda: run("evict", m.path / "big", check=False).returncode == 0)
        assert eventually(lambda: free() - before > len(data) // 2)
        m.umount()
    finally:
        sh(f"umount -l {disk}", check=False)


def test_an_open_file_is_not_evicted(passed, store):
    data = blob(7, 2 * MIB)
    store.put("o", data)
    with open(passed.path / "o", "rb") as f:
        f.read(1)
        assert run("evict", passed.path / "o", check=False).returncode == 1
        assert f.read() == data[1:]


def test_replaced_elsewhere_while_open_and_mapped(passed, store):
    old, new = blob(8, 2 * MIB), blob(9, 3 * MIB)
    store.put("d/f", old)
    with open(passed.path / "d/f", "rb") as f:
        m = Mapping(passed.path / "d/f", len(old))
        time.sleep(1.1)
        store.put("d/f", new)
        assert eventually(lambda: os.stat(passed.path / "d/f").st_size == len(new))
        assert (passed.path / "d/f").read_bytes() == new
        assert f.read() == old, "an open handle keeps its version"
        assert m.read() == old, "and so does a mapping"
        m.close()


def test_overwritten_here_while_open_and_mapped(passed, store):
    old = blob(10, 2 * MIB)
    store.put("f", old)
    with open(passed.path / "f", "rb") as f:
        assert f.read(10) == old[:10]
        with open(passed.path / "f", "r+b") as w:
            assert io(passed, "f") == "passthrough"
            w.seek(MIB)
            w.write(b"changed")
        f.seek(MIB)
        assert f.read(7) == b"changed", "readers see a writer's bytes"
    passed.wait()
    want = bytearray(old)
    want[MIB:MIB + 7] = b"changed"
    assert store.get("f") == bytes(want)


def test_opened_for_writing_beside_a_reader_and_left_alone(passed, store):
    data = blob(11, MIB)
    store.put("f", data)
    with open(passed.path / "f", "rb") as f:
        f.read(1)
        before = store.head("f")
        time.sleep(0.05)
        with open(passed.path / "f", "r+b"):
            pass
        assert eventually(lambda: passed.info("f")["state"] == "clean")
        passed.wait()
        assert f.read() == data[1:]
    assert store.head("f") == before, "nothing was written, so nothing is uploaded"
    assert run("evict", passed.path / "f", check=False).returncode == 0
    assert (passed.path / "f").read_bytes() == data


def test_opened_for_writing_right_after_it_was_fetched_and_left_alone(passed, store):
    names = [f"f{i}" for i in range(40)]
    for name in names:
        store.put(name, b"left as it is")
    before = {name: store.head(name) for name in names}
    for name in names:
        with open(passed.path / name, "rb") as reader:  # who writes beside it writes past the daemon as well
            assert reader.read() == b"left as it is"
            open(passed.path / name, "r+b").close()
    passed.wait()
    assert {name: store.head(name) for name in names} == before, "sent though nothing was written"


def test_truncated_at_open_while_a_reader_has_it(passed, store):
    store.put("f", blob(12, MIB))
    with open(passed.path / "f", "rb", buffering=0) as f:
        f.read(1)
        (passed.path / "f").write_bytes(b"short")
        f.seek(0)
        assert f.read() == b"short"
    passed.wait()
    assert store.get("f") == b"short"


def test_renamed_and_unlinked_while_open_and_mapped(passed, store):
    one, two = blob(13, MIB), blob(14, MIB)
    store.put("one", one)
    store.put("two", two)
    with open(passed.path / "one", "rb") as f, open(passed.path / "two", "rb") as g:
        m = Mapping(passed.path / "two", MIB)
        os.rename(passed.path / "one", passed.path / "two")
        assert (passed.path / "two").read_bytes() == one
        assert f.read() == one and g.read() == two and m.read() == two
        os.unlink(passed.path / "two")
        f.seek(0)
        assert f.read() == one
        m.close()
    passed.wait()
    assert store.list() == {}


def test_a_change_through_us_after_the_kernel_wrote(make_mount, store):
    """Kernel's page cache, our writes and passthrough in turns on one file."""
    m = make_mount()
    path = m.path / "t"
    want = bytearray(blob(15, 3 * MIB))
    path.write_bytes(want)
    m.wait()
    for i in range(6):
        with open(path, "r+b") as f:
            f.seek(i * 1000)
            f.write(b"edit %d" % i)
        want[i * 1000:i * 1000 + 6] = b"edit %d" % i
        assert path.read_bytes() == bytes(want)
        if i % 2:
            m.wait()
            assert path.read_bytes() == bytes(want)
    with open(path, "ab") as f:
        f.write(b"tail")
    want += b"tail"
    os.truncate(path, 2 * MIB)
    del want[2 * MIB:]
    assert path.read_bytes() == bytes(want)
    m.wait()
    assert store.get("t") == bytes(want)


def test_times_and_sizes_of_what_the_kernel_wrote(passed):
    path = passed.path / "t"
    with open(path, "wb", buffering=0) as f:
        f.write(b"x" * 1000)
        assert os.stat(path).st_size == 1000 and abs(os.stat(path).st_mtime - time.time()) < 5
        os.utime(path, ns=(10**18, 10**18 + 7))
        assert os.stat(path).st_mtime_ns == 10**18 + 7
        f.write(b"y")
        assert os.stat(path).st_mtime_ns > 10**18 + 7 and os.stat(path).st_size == 1001
        os.utime(path, ns=(10**18, 10**18 + 9))
    assert os.stat(path).st_mtime_ns == 10**18 + 9
    passed.remount()
    assert os.stat(path).st_mtime_ns == 10**18 + 9 and os.stat(path).st_size == 1001


def test_killed_while_the_kernel_writes(make_mount, store):
    m = make_mount(part_size="5M")
    done = m.path / "done"
    data = blob(16, 12 * MIB)
    done.write_bytes(data)
    f = open(m.path / "half", "wb", buffering=0) # inherited by every command run here: they close it, we do not
    f.write(data)
    m.kill9()
    try:
        f.close()
    except OSError:
        pass
    m.mount()
    m.wait("done")
    assert store.get("done") == data
    time.sleep(1)
    assert store.head("half") is None, "its writer never said that it was whole"
    assert (m.path / "half").read_bytes() == data, "and what was written is kept here"
    with open(m.path / "half", "ab"):
        pass
    m.wait()


def test_many_writers_at_once(make_mount, store):
    m = make_mount(part_size="5M")
    data = [blob(100 + i, 11 * MIB + i) for i in range(8)]

    def save(i):
        with open(m.path / f"shard-{i}", "wb", buffering=0) as f:
            for off in range(0, len(data[i]), 300_000):
                f.write(data[i][off:off + 300_000])

    threads = [threading.Thread(target=save, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    m.wait()
    for i in range(8):
        assert hashlib.md5(store.get(f"shard-{i}")).digest() == hashlib.md5(data[i]).digest()


def test_writers_that_seek_and_preallocate(make_mount, store):
    m = make_mount(part_size="5M")
    data = blob(17, 30 * MIB)
    with open(m.path / "back", "wb", buffering=0) as f: # from the end to the start
        for off in range(len(data) - MIB, -1, -MIB):
            f.seek(off)
            f.write(data[off:off + MIB])
    with open(m.path / "alloc", "wb", buffering=0) as f:
        os.posix_fallocate(f.fileno(), 0, len(data))
        for off in range(0, len(data), MIB):
            f.write(data[off:off + MIB])
    m.wait()
    assert store.get("back") == data and store.get("alloc") == data


def test_writers_are_held_back_where_files_are_too_large_for_the_room(make_mount):
    m = make_mount(cache_size="400M")
    if not m.status()["passthrough"]:
        pytest.skip("no passthrough here")
    for name in "large", "small":
        (m.path / name).mkdir()
    with open(m.path / "large/1", "wb") as f:
        assert io(m, "large/1") == "passthrough"
        f.truncate(220 * MIB)
    m.wait()

    def written_as(name):
        with open(m.path / name, "wb"):
            return io(m, name)

    assert eventually(lambda: written_as("large/2") == "cached"), "a size is noted a little after the close"
    assert written_as("small/1") == "passthrough"


def test_switched_off(make_mount, store):
    m = make_mount(passthrough="off")
    store.put("a", b"abc" * 1000)
    s = m.status()
    assert s["passthrough"] is False and "--passthrough" in s["passthrough_off_because"]
    with open(m.path / "a", "rb") as f:
        assert io(m, "a") == "cached" and f.read() == b"abc" * 1000
    (m.path / "b").write_bytes(b"x" * 100)
    m.wait()
    assert store.get("b") == b"x" * 100


def test_files_open_for_writing_are_not_passed_through_on_a_disk_without_leases(make_mount, store, base):
    (base / "c").mkdir(mode=0o700)
    (base / "c/fault").write_text("nolease")
    old = blob(1, 3 * MIB)
    store.put("old", old)
    m = make_mount(passthrough="on", cache_dir=base / "c", disk_faults=True, metadata_ttl="1h")
    s = m.status()
    if not s["passthrough"]:
        pytest.skip(f"no passthrough here: {s.get('passthrough_off_because')}")
    assert s["passthrough_reads_only"] == [str(base / "c")]
    with open(m.path / "new", "w+b") as f:
        f.write(b"x" * MIB)
        assert io(m, "new") == "cached"
    mapped = Mapping(m.path / "new", MIB, writable=True)
    mapped.write(0, b"first")
    (m.path / "later").write_text("later")
    assert eventually(lambda: store.head("later") is not None)
    mapped.write(10, b"second")
    mapped.close()
    assert eventually(lambda: m.wait() or store.get("new")[:16] == b"firstxxxxxsecond")
    with open(m.path / "old", "rb") as reader:
        assert io(m, "old") == "passthrough" and reader.read() == old
        for flags in (os.O_RDWR, os.O_RDWR | os.O_TRUNC):
            with pytest.raises(OSError) as e:
                os.open(m.path / "old", flags)
            assert e.value.errno == errno.ETXTBSY
        m.wait()
        assert os.pread(reader.fileno(), len(old), 0) == old and store.get("old") == old
        fd = os.open(m.path / "old", os.O_WRONLY)
        assert os.pwrite(fd, b"new", MIB) == 3
        os.close(fd)
        want = old[:MIB] + b"new" + old[MIB + 3:]
        assert os.pread(reader.fileno(), len(want), 0) == want
        m.wait()
        assert store.get("old") == want
        assert io(m, "old") == "passthrough"


def test_without_the_capability_all_goes_through_the_daemon(base):
    """Root of a user namespace may mount, but not hand files to the kernel."""
    lake, mnt = base / "lake", base / "u"
    for d in (lake, mnt):
        d.mkdir()
    (lake / "f").write_bytes(b"hello")
    script = f"""set -e
{SLUICE} mount file://{lake} {mnt} --cache-dir {base}/c --log-file {base}/log
cat {mnt}/f; echo more > {mnt}/g; exec 3< {mnt}/f; {SLUICE} info --json {mnt}/f; exec 3<&-
{SLUICE} wait {mnt}; {SLUICE} status --json {mnt}; {SLUICE} umount {mnt}"""
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello") and '"io":"cached"' in done.stdout, done.stdout
    assert "no CAP_SYS_ADMIN" in done.stdout
    assert (lake / "g").read_text() == "more\n"
