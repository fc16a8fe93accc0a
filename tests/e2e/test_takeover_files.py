"""Files that are open when a worker dies: whoever has them goes on as if nothing had been."""
import errno
import mmap
import os
import random

import pytest
from mounts import MIB, eventually


@pytest.fixture(params=["on", "off"], name="m")
def _mount(request, make_mount):
    return make_mount(passthrough=request.param)


def test_writer_goes_on(m, store):
    data = random.Random(1).randbytes(3 * MIB)
    with open(m.path / "f", "wb", buffering=0) as f:
        for i in range(3):
            f.write(data[i * MIB:(i + 1) * MIB])
            m.kill_worker()
            assert os.fstat(f.fileno()).st_size == (i + 1) * MIB
        assert store.head("f") is None
    m.wait()
    assert store.get("f") == data


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


def test_duplicated_descriptor_closed_before_the_death(m, store):
    fd = os.open(m.path / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"1")
    os.close(os.dup(fd))
    m.kill_worker()
    os.write(fd, b"2")
    m.kill_worker()
    os.write(fd, b"3")
    os.close(fd)
    m.wait()
    assert store.get("f") == b"123"


def test_file_without_a_name_stays(m):
    fd = os.open(m.path / "f", os.O_RDWR | os.O_CREAT)
    tmp = os.open(m.path, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, b"x" * MIB)
    os.write(tmp, b"y" * MIB)
    os.unlink(m.path / "f")
    m.kill_worker()
    for this, byte in (fd, b"x"), (tmp, b"y"):
        assert os.pread(this, MIB, 0) == byte * MIB
        os.pwrite(this, b"end", MIB)
        assert os.fstat(this).st_size == MIB + 3 and os.fstat(this).st_nlink == 0
    m.kill_worker()
    os.link(f"/proc/self/fd/{tmp}", m.path / "g", follow_symlinks=True)
    os.close(fd)
    os.close(tmp)
    assert (m.path / "g").read_bytes() == b"y" * MIB + b"end"
    assert not (m.path / "f").exists()


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


def test_scan_goes_on(m):
    (m.path / "d").mkdir()
    names = {f"{i:05}-with-a-name-that-fills-pages" for i in range(3000)}
    for name in names:
        (m.path / "d" / name).touch()
    seen = []
    with os.scandir(m.path / "d") as it:
        for i, entry in enumerate(it):
            seen.append(entry.name)
            if i in (10, 1500):
                m.kill_worker()
    assert len(seen) == len(set(seen)) and set(seen) == names


def test_mappings_go_on(m, store):
    data = random.Random(3).randbytes(4 * MIB)
    store.put("r", data)
    with open(m.path / "r", "rb") as f:
        reads = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    fd = os.open(m.path / "w", os.O_RDWR | os.O_CREAT)
    os.truncate(fd, MIB)
    writes = mmap.mmap(fd, MIB)
    writes[:4] = b"1234"
    os.close(fd)
    m.kill_worker()
    assert reads[:] == data
    writes[4:8] = b"5678"
    m.kill_worker()
    writes[8:12] = b"9abc"
    writes.flush()
    writes.close()
    reads.close()
    m.wait()
    assert store.get("w")[:12] == b"123456789abc"


def test_clean_file_opened_for_writing_and_left_alone_is_not_published(make_mount, store):
    m = make_mount(passthrough="on")
    store.put("f", b"1234")
    with open(m.path / "f", "rb") as f:
        assert f.read() == b"1234"
        with open(m.path / "f", "r+b"):
            m.kill_worker()
    m.wait()
    assert eventually(lambda: m.info("f")["state"] == "clean", 5), m.info("f")


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
