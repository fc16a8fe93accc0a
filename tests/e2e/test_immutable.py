"""--immutable: no message per open, native page cache, and still the right bytes. Proven by counts of requests, never by time."""
import errno
import mmap
import os
import subprocess

import pytest
from mounts import MIB, eventually, run
from test_passthrough import blob


@pytest.fixture
def frozen(make_mount):
    """frozen(**options): an immutable mount; skipped where the kernel cannot do without OPEN."""
    def make(**options):
        m = make_mount(immutable=True, metadata_ttl=None, negative_ttl=None, **options)
        if "no-open" not in m.status()["kernel_features"]:
            pytest.skip("this kernel sends OPEN for each open")
        return m
    return make


def requests(m):
    return m.status()["fuse_requests"]


def put_files(store, n, size=100_000):
    files = {f"d/{i:03}": blob(i, size + i) for i in range(n)}
    for key, data in files.items():
        store.put(key, data)
    return files


def test_a_warm_epoch_sends_nothing_to_the_daemon(frozen, store):
    files = put_files(store, 60)
    m = frozen()
    s = m.status()
    assert s["immutable"] and s["read_only"]
    for epoch in range(2):
        assert sorted(os.listdir(m.path / "d")) == sorted(key[2:] for key in files)
        for key, data in files.items():
            assert (m.path / key).read_bytes() == data
        if epoch == 0:
            before, lists = requests(m), m.status()["requests"]["list"]
    assert requests(m) - before <= 5, "the second pass over 60 files is served by the kernel"
    assert m.status()["requests"]["list"] == lists


def test_reads_in_pieces_and_mappings_are_exact(frozen, store):
    data = blob("big", 24 * MIB + 777)
    store.put("big.bin", data)
    m = frozen(open_fill="1M")
    with open(m.path / "big.bin", "rb") as f:
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[20 * MIB:20 * MIB + 99] == data[20 * MIB:20 * MIB + 99]
            assert mapped[:] == data
        assert os.pread(f.fileno(), 1000, 5 * MIB + 3) == data[5 * MIB + 3:5 * MIB + 1003]
        assert os.pread(f.fileno(), 1000, len(data) - 10) == data[-10:]
        assert f.seek(0, os.SEEK_END) == len(data)
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == len(data)
        os.fsync(f.fileno())
    assert m.status()["downloaded_bytes"] == len(data), "each byte is fetched once"


def test_a_small_file_is_fetched_whole_at_its_first_read(frozen, store):
    data = blob("small", 3 * MIB)
    store.put("small.bin", data)
    m = frozen()
    with open(m.path / "small.bin", "rb") as f:
        assert os.pread(f.fileno(), 10, 0) == data[:10]
        assert eventually(lambda: m.info("small.bin")["cached_bytes"] == len(data))


def refused(call, *args):
    with pytest.raises(OSError) as e:
        call(*args)
    return e.value.errno


def test_changes_are_refused_and_there_are_no_virtual_files(frozen, store):
    files = put_files(store, 3)
    m = frozen()
    name = m.path / next(iter(files))
    assert refused(open, name, "r+b") == errno.EROFS
    assert refused(open, m.path / "new", "wb") == errno.EROFS
    assert refused(os.unlink, name) == errno.EROFS
    assert refused(os.mkdir, m.path / "x") == errno.EROFS
    assert refused(os.rename, name, m.path / "y") == errno.EROFS
    assert refused(os.truncate, name, 3) == errno.EROFS
    assert refused(os.setxattr, name, "user.a", b"b") == errno.EROFS
    assert refused(os.chmod, name, 0o600) == errno.EROFS
    for virtual in (".stats", ".config"):
        assert refused(open, m.path / virtual) == errno.ENOENT
    assert store.list() == {key: len(data) for key, data in files.items()}


def test_evicted_files_are_fetched_again(frozen, store):
    files = put_files(store, 20, MIB)
    m = frozen()
    for key, data in files.items():
        assert (m.path / key).read_bytes() == data
    assert eventually(lambda: m.info("d/000")["cached_bytes"] == len(files["d/000"]))
    run("evict", m.path / "d")
    assert m.info("d/000")["cached_bytes"] == 0
    with open(m.path / "d/000", "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert f.read() == files["d/000"]


def test_more_data_than_the_cache_holds(frozen, store):
    files = put_files(store, 40, 4 * MIB)
    m = frozen(cache_size="96M", part_size="5M")
    for _ in range(2):
        for key, data in files.items():
            with open(m.path / key, "rb") as f:
                assert f.read() == data
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    s = m.status()
    assert s["cache_bytes"] <= s["cache_limit_bytes"]


def test_a_replaced_object_is_never_mixed(frozen, store):
    old, new = blob("old", 12 * MIB), blob("new", 12 * MIB)
    store.put("x.bin", old)
    m = frozen(open_fill="1M", readahead="0")
    with open(m.path / "x.bin", "rb") as f:
        assert os.pread(f.fileno(), 1000, 0) == old[:1000]
        store.put("x.bin", new)
        for off in range(0, len(old), MIB):
            try:
                assert old[off:off + MIB].startswith(os.pread(f.fileno(), MIB, off)), "short at worst"
            except OSError as e:
                assert e.errno in (errno.ESTALE, errno.EIO)
    m.remount()
    assert (m.path / "x.bin").read_bytes() == new


def test_what_was_added_elsewhere_is_seen_by_the_next_mount(frozen, store):
    files = put_files(store, 3)
    m = frozen()
    assert len(os.listdir(m.path / "d")) == len(files)
    store.put("d/later", b"x")
    assert len(os.listdir(m.path / "d")) == len(files)
    m.remount()
    assert "later" in os.listdir(m.path / "d")


@pytest.mark.parametrize("option,value", [("close", "remote"), ("conflict", "keep"), ("hold", "*.x"), ("metadata_ttl", "5s")])
def test_options_that_mean_writing_or_looking_again_are_refused(make_mount, option, value):
    m = make_mount(start=False, immutable=True, **{"metadata_ttl": None, "negative_ttl": None, option: value})
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode == 2 and not m.is_mounted()
    assert option.replace("_", "-") in done.stderr and "immutable" in done.stderr


def test_many_readers_at_once(frozen, store):
    files = put_files(store, 50)
    m = frozen()
    total = sum(map(len, files.values()))
    done = subprocess.run(["bash", "-c", f"ls {m.path}/d/* | xargs -P 8 -n 1 cat | wc -c"], capture_output=True, timeout=60, check=True)
    assert int(done.stdout) == total
    assert m.status()["downloaded_bytes"] == total
