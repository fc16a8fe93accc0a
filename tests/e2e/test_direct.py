"""Large files that are not here yet, read by direct I/O: the same bytes in every mixture of readers."""
import hashlib
import mmap
import os
import subprocess
import sys
import threading
import time

import pytest
from mounts import MIB, eventually, in_thread, run
from test_passthrough import Mapping, blob, io

SIZE = 24 * MIB
# Reads $1 by blocks of $2 and prints a digest; "map" and "send" are other ways.
READER = """
import hashlib, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size, how, digest = os.fstat(fd).st_size, sys.argv[2], hashlib.sha1()
if how == "map":
    digest.update(mmap.mmap(fd, size, prot=mmap.PROT_READ))
elif how == "send":
    out = os.memfd_create("out")
    while os.sendfile(out, fd, None, size):
        pass
    digest.update(os.pread(out, size, 0))
else:
    while block := os.read(fd, int(how)):
        digest.update(block)
print(digest.hexdigest())
"""


def read_as(path, how):
    """Starts a program that reads the file; its digest by call of the result."""
    p = subprocess.Popen([sys.executable, "-c", READER, str(path), str(how)], stdout=subprocess.PIPE, text=True)

    def end():
        out, _ = p.communicate(timeout=60)
        assert p.returncode == 0
        return out.strip()
    return end


def digest(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def direct(make_mount):
    def make(**options):
        m = make_mount(passthrough="on", **{"open_fill": "1M", **options})
        status = m.status()
        if not status["passthrough"] or "direct-io-allow-mmap" not in status["kernel_features"]:
            pytest.skip("the kernel cannot do it")
        return m
    return make


def test_first_reader_goes_past_the_page_cache_and_the_next_open_is_passed_through(direct, store):
    data = blob(1, SIZE)
    store.put("a", data)
    m = direct()
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        got = b"".join(iter(lambda: f.read(MIB), b""))
        assert got == data
        assert f.read(10) == b""
        assert os.pread(f.fileno(), 5000, SIZE - 3000) == data[-3000:]
        assert os.pread(f.fileno(), 777, 12345) == data[12345:12345 + 777]
    assert eventually(lambda: m.info("a")["cached_bytes"] == SIZE and io(m, "a") == "closed")
    with open(m.path / "a", "rb") as f:
        assert io(m, "a") == "passthrough"
        assert f.read() == data


def test_what_little_lacks_is_fetched_before_the_open_is_answered(direct, store):
    """Of a large file too: then the kernel reads all of it by itself."""
    data = blob(14, SIZE)
    store.put("a", data)
    m = direct(readahead="0", prefetch="off")
    lacks = MIB // 2
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        for off in range(0, SIZE - lacks, MIB // 2):
            assert os.pread(f.fileno(), MIB // 2, off) == data[off:off + MIB // 2]
    assert eventually(lambda: io(m, "a") == "closed")
    assert m.info("a")["cached_bytes"] == SIZE - lacks
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "passthrough"
        assert m.info("a")["cached_bytes"] == SIZE
        assert f.read() == data


def test_readers_of_all_kinds_at_once(direct, store):
    data = blob(2, SIZE)
    store.put("a", data)
    m = direct()
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        ends = [read_as(m.path / "a", how) for how in (MIB, 4096, 100000, "map", "send")]
        assert b"".join(iter(lambda: f.read(MIB + 1), b"")) == data
        assert [end() for end in ends] == [digest(data)] * len(ends)


def test_mapped_and_sent_through_a_direct_handle(direct, store):
    data = blob(3, SIZE)
    for name in "map", "send", "private":
        store.put(name, data)
    m = direct()
    for name in "map", "send":
        assert read_as(m.path / name, name)() == digest(data)
    with open(m.path / "private", "rb", buffering=0) as f:
        assert io(m, "private") == "direct"
        mapping = mmap.mmap(f.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
        assert f.read(3 * MIB) == data[:3 * MIB]
        assert mapping[:] == data
        mapping[0:4] = b"mine"
        assert os.pread(f.fileno(), 4, 0) == data[:4]
        mapping.close()


def test_a_mapping_of_a_direct_handle_outlives_it(direct, store):
    data = blob(4, SIZE)
    store.put("a", data)
    m = direct()
    mapping = Mapping(m.path / "a", SIZE)
    assert mapping.read(5 * MIB, 100) == data[5 * MIB:5 * MIB + 100]
    for how in MIB, "map":
        assert read_as(m.path / "a", how)() == digest(data)
    assert mapping.read() == data
    mapping.close()
    assert eventually(lambda: io(m, "a") == "closed")
    assert read_as(m.path / "a", MIB)() == digest(data)


def test_mapping_formats_stay_in_the_page_cache(direct, store):
    data = blob(5, SIZE)
    store.put("w.safetensors", data)
    m = direct()
    with open(m.path / "w.safetensors", "rb") as f:
        assert io(m, "w.safetensors") == "cached"
        assert f.read() == data


def opened_as(m, name):
    with open(m.path / name, "rb", buffering=0) as f:
        f.read(1)
        return io(m, name)


def test_how_a_directory_is_read_is_learned_both_ways(direct, store):
    data = blob(6, 2 * SIZE)
    for name in "d/a", "d/b", "d/c", "e/a":
        store.put(name, data)
    m = direct()
    assert opened_as(m, "d/a") == "direct"
    assert read_as(m.path / "d/a", 4096)() == digest(data)
    assert eventually(lambda: opened_as(m, "d/b") == "cached"), "4 KiB at a time"
    assert opened_as(m, "e/a") == "direct", "another directory"
    if not os.path.exists("/proc/self/io"):
        return
    with open(m.path / "d/b", "rb", buffering=0) as f:
        assert io(m, "d/b") == "cached"
        assert b"".join(iter(lambda: f.read(MIB), b"")) == data
    assert eventually(lambda: opened_as(m, "d/c") == "direct"), "1 MiB at a time"


def test_larger_than_the_cache(direct, store):
    data = blob(7, 6 * SIZE)
    store.put("a", data)
    m = direct(cache_size="64M")
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        end = read_as(m.path / "a", 4096)
        for _ in range(2):
            f.seek(0)
            assert b"".join(iter(lambda: f.read(MIB), b"")) == data
        assert end() == digest(data)


def test_evicted_between_two_readers(direct, store):
    data = blob(7, SIZE)
    store.put("a", data)
    m = direct()
    for _ in range(3):
        with open(m.path / "a", "rb", buffering=0) as f:
            assert io(m, "a") == "direct"
            assert b"".join(iter(lambda: f.read(MIB), b"")) == data
        assert eventually(lambda: run("evict", m.path / "a", check=False).returncode == 0)


def test_changed_elsewhere_while_it_is_read(direct, store):
    old, new = blob(8, 2 * SIZE), blob(9, SIZE)
    store.put("d/a", old)
    m = direct()
    with open(m.path / "d/a", "rb", buffering=0) as f:
        assert io(m, "d/a") == "direct"
        assert f.read(MIB) == old[:MIB]
        time.sleep(1.1)
        store.put("d/a", new)
        assert eventually(lambda: os.stat(m.path / "d/a").st_size == SIZE)
        with open(m.path / "d/a", "rb", buffering=0) as g:
            assert b"".join(iter(lambda: g.read(MIB), b"")) == new
        try:
            at = MIB
            while block := f.read(MIB):
                assert block == old[at:at + len(block)], "never a mixture"
                at += len(block)
        except OSError:
            pass  # what had not come yet is gone


def test_changed_here_while_it_is_read(direct, store):
    data = bytearray(blob(10, SIZE))
    store.put("a", bytes(data))
    m = direct()
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        mapping = mmap.mmap(f.fileno(), SIZE, prot=mmap.PROT_READ)
        assert mapping[:100] == data[:100]
        with open(m.path / "a", "r+b", buffering=0) as w:
            for off in 10, SIZE - 5:
                w.seek(off)
                w.write(b"here!")
                data[off:off + 5] = b"here!"
                assert os.pread(f.fileno(), 5, off) == b"here!" == mapping[off:off + 5]
        with open(os.open(m.path / "a", os.O_WRONLY), "wb", buffering=0) as w:
            w.write(b"there")
            data[:5] = b"there"
        assert os.pread(f.fileno(), 100, 0) == data[:100] == mapping[:100]
        mapping.close()
    m.wait()
    assert store.get("a") == bytes(data) == (m.path / "a").read_bytes()


def test_worker_dies_under_a_direct_reader(direct, store):
    data = blob(11, 2 * SIZE)
    store.put("a", data)
    m = direct()
    with open(m.path / "a", "rb", buffering=0) as f:
        assert io(m, "a") == "direct"
        assert f.read(MIB) == data[:MIB]
        mapping = Mapping(m.path / "a", 2 * SIZE)
        m.kill_worker()
        assert io(m, "a") in ("direct", "cached")
        join = in_thread(lambda: b"".join(iter(lambda: f.read(MIB), b"")))
        m.kill_worker()
        assert join(60) == data[MIB:]
        assert read_as(m.path / "a", MIB)() == digest(data)
        assert mapping.read() == data
        mapping.close()
    assert eventually(lambda: m.info("a")["cached_bytes"] == 2 * SIZE and io(m, "a") == "closed")
    with open(m.path / "a", "rb") as f:
        assert io(m, "a") == "passthrough"
        assert f.read() == data


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_written_past_the_page_cache_beside_a_reader(make_mount, first):
    pages, rounds = 4, 1000
    m = make_mount(passthrough="off")
    path = m.path / "f"
    path.write_bytes(bytes(pages * 4096))
    if first == "reader":
        r, w = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
        mapping = mmap.mmap(r, pages * 4096, prot=mmap.PROT_READ)
    else:
        w, r = os.open(path, os.O_WRONLY), os.open(path, os.O_RDONLY)
    done = threading.Event()

    def keep_reading():
        while not done.is_set():
            os.pread(r, pages * 4096, 0)

    join = in_thread(keep_reading)
    try:
        for n in range(1, rounds):
            off, data = n % pages * 4096 + n % 1000, n.to_bytes(8, "little")
            assert os.pwrite(w, data, off) == 8
            assert os.pread(r, 8, off) == data, n
            if first == "reader":
                assert mapping[off:off + 8] == data, n
        os.pwrite(w, b"appended", pages * 4096)
        assert os.pread(r, 100, pages * 4096) == b"appended"
        assert path.read_bytes()[-8:] == b"appended"
    finally:
        done.set()
        join(60)
    if first == "reader":
        mapping.close()
    os.close(r)
    os.close(w)
    assert path.read_bytes()[-8:] == b"appended"
