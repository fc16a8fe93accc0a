"""Several cache disks and the memory tier: both used, lost, swapped, failing; what was written stays right and nothing is dropped silently."""
import hashlib
import errno
import os
import pathlib
import shutil

import pytest
from mounts import MIB, eventually, in_thread, run, sh


NO_PUT = "op=put,action=error:-EIO"
NO_PUBLISH = ";".join(f"op={verb},action=error:-EIO" for verb in ("put", "create", "part"))
BYPASSED_S = 10  # until a disk that fails or does not answer is done without


def blob(seed, size):
    return hashlib.shake_128(str(seed).encode()).digest(size)


def data_files(disk):
    return [p for p in pathlib.Path(disk).glob("data/??/*") if p.is_file()]


def tiers(m):
    return {pathlib.Path(t["path"]).name: t for t in m.status()["tiers"]}


@pytest.fixture
def two(make_mount, base):
    """make(**options): a mount on the disks a and b under base."""
    def make(name="m", **options):
        return make_mount(name, cache_dir=f"{base}/a:{base}/b", **options)
    return make


def fill(m, store, n=12, size=MIB):
    files = {f"f{i}.bin": blob(i, size + i) for i in range(n)}
    for name, data in files.items():
        store.put(name, data)
    check(m, files)
    return files


def check(m, files):
    for name, data in files.items():
        assert (m.path / name).read_bytes() == data, name


def check_past_the_page_cache(m, files):
    for name, data in files.items():
        with open(m.path / name, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert f.read() == data, name


def test_two_disks_are_both_used_and_remembered(two, store, base):
    m = two()
    files = fill(m, store)
    for i in range(6):
        (m.path / f"new{i}").write_bytes(blob(f"new{i}", MIB))
    m.wait()
    for disk in "ab":
        assert len(data_files(base / disk)) >= 3
        assert tiers(m)[disk]["used_bytes"] >= 3 * MIB
    m.remount()
    before = m.status()["downloaded_bytes"]
    check(m, files)
    assert m.status()["downloaded_bytes"] == before, "all that was here is still known to be here"


def test_the_order_of_the_disks_does_not_matter(two, store, base):
    m = two()
    files = fill(m, store)
    m.remount(cache_dir=f"{base}/b:{base}/a")
    check(m, files)
    assert m.status()["downloaded_bytes"] == 0
    assert m.status()["cache_dir"] == f"{base}/a", "the database is where it was"


def test_a_disk_taken_out_and_given_again_is_cleared_of_what_moved(two, store, base):
    m = two()
    files = fill(m, store)
    n = len(data_files(base / "b"))
    assert n > 0
    m.remount(cache_dir=base / "a")
    check(m, files)
    assert [t["state"] for t in m.status()["tiers"]] == ["ok"]
    m.remount(cache_dir=f"{base}/a:{base}/b")
    assert eventually(lambda: data_files(base / "b") == [])
    check(m, files)
    assert m.status()["downloaded_bytes"] == 0
    assert f"{base}/b, kind disk, state ok" in run("status", m.path).stdout


def test_a_disk_of_another_cache_is_refused(two, make_mount, store, base):
    m = two()
    m.umount()
    other = make_mount("other", start=False, cache_dir=f"{base}/c:{base}/b")
    refused = run(*other.arguments(), env=other.env, check=False)
    assert refused.returncode != 0 and f"{base}/b" in refused.stderr + other.log()
    alone = make_mount("alone", start=False, cache_dir=f"{base}/d:{base}/a")
    assert alone.mount().status()["cache_dir"] == f"{base}/a"


def test_a_disk_that_vanished_is_gone_on_without(two, store, base):
    m = two()
    files = fill(m, store)
    (m.path / "later").write_bytes(blob("later", MIB))
    m.wait()
    m.umount()
    shutil.rmtree(base / "b")
    m.mount()
    check(m, files)
    check(m, {"later": blob("later", MIB)})
    assert tiers(m)["b"]["state"] == "ok", "the folder that is there now is used"


def test_unpublished_bytes_on_a_missing_disk_are_named_and_kept(two, store, base):
    m = two(fault=NO_PUT, op_timeout="2s")
    names = {f"w{i}": blob(f"w{i}", 100_000) for i in range(8)}
    for name, data in names.items():
        (m.path / name).write_bytes(data)
    m.umount()
    on_b = len(data_files(base / "b"))
    assert 0 < on_b < len(names)
    (base / "b").rename(base / "away")
    (base / "b").write_text("not a folder")
    m.mount()
    lost = m.status()["unreachable"]
    assert len(lost) == on_b
    assert all(name in m.log() for name in lost)
    assert tiers(m)["b"]["state"] == "missing"
    for name, data in names.items():
        if name in lost:
            with pytest.raises(OSError):
                (m.path / name).read_bytes()
        else:
            assert (m.path / name).read_bytes() == data
    m.umount()
    (base / "b").unlink()
    (base / "away").rename(base / "b")
    m.mount(fault=None)
    assert m.status()["unreachable"] == []
    m.wait()
    for name, data in names.items():
        assert store.get(name) == data


def test_fsck_looks_at_all_disks(two, store, base):
    m = two(fault=NO_PUT, op_timeout="2s", order="none")
    names = {f"w{i}": blob(f"w{i}", 100_000) for i in range(6)}
    for name, data in names.items():
        (m.path / name).write_bytes(data)
    m.umount()
    assert run("fsck", base / "a").returncode == 0
    (base / "b").rename(base / "away")
    absent = run("fsck", "--repair", base / "a", check=False)
    assert absent.returncode == 1 and f"its bytes are on the cache disk {base}/b, which is not there" in absent.stdout
    assert "repaired" not in absent.stdout, "what is not there is left alone"
    (base / "away").rename(base / "b")
    stray = base / "b" / "data" / "ff" / "00000000000fffff"
    stray.write_bytes(b"stray")
    gone = data_files(base / "b")[0]
    gone = gone if gone != stray else data_files(base / "b")[1]
    gone.unlink()
    found = run("fsck", base / "a", check=False)
    assert found.returncode == 1 and "bytes are gone" in found.stdout and "belongs to nothing" in found.stdout
    run("fsck", "--repair", base / "a", check=False)
    assert not stray.exists()
    m.mount(fault=None)
    assert eventually(lambda: sum(store.head(name) is not None for name in names) == len(names) - 1)


def test_a_folder_with_unpublished_files_is_not_taken_for_a_new_disk(two, store, base):
    m = two(fault=NO_PUT, op_timeout="2s")
    names = {f"w{i}": blob(f"w{i}", 100_000) for i in range(6)}
    for name, data in names.items():
        (m.path / name).write_bytes(data)
    m.umount()
    (base / "b" / "tier").unlink()
    refused = run(*m.arguments(), env=m.env, check=False)
    assert refused.returncode != 0 and "unpublished files" in refused.stderr, "never taken for a new disk"


EITHER = pytest.mark.parametrize("disk", ["a", "b"])  # a has the database as well


def is_bypassed(m, disk):
    return eventually(lambda: tiers(m)[disk]["state"] == "bypassed", BYPASSED_S)


@EITHER
def test_a_failing_disk_is_bypassed_and_bytes_stay_right(two, store, base, disk):
    m = two(disk_faults=True, passthrough="off")
    files = fill(m, store)
    (base / disk / "fault").write_text("eio")
    assert is_bypassed(m, disk)
    check_past_the_page_cache(m, files)
    before = len(data_files(base / disk))
    for i in range(4):
        (m.path / f"after{i}").write_bytes(blob(i, MIB))
    m.wait()
    assert len(data_files(base / disk)) == before, "nothing new goes to a disk that failed"


@EITHER
def test_reads_go_on_while_a_disk_hangs(two, store, base, disk):
    m = two(disk_faults=True, passthrough="off")
    files = fill(m, store)
    n, before = len(data_files(base / disk)), m.status()["downloaded_bytes"]
    assert 0 < n < len(files)
    fault = base / disk / "fault"
    with open(m.path / "f0.bin", "rb") as kept:
        fault.write_text("hang")
        try:
            assert is_bypassed(m, disk)
            in_thread(lambda: check_past_the_page_cache(m, files))()
            assert kept.read() == files["f0.bin"]
        finally:
            fault.unlink()
    assert m.status()["downloaded_bytes"] - before >= n * MIB, "what was there is fetched again"
    assert "does not answer" in m.log()


@EITHER
@pytest.mark.parametrize("fault", ["eio", "hang"])
def test_unpublished_bytes_on_a_failing_disk_are_named(two, store, base, disk, fault):
    m = two(disk_faults=True, fault=NO_PUT, op_timeout="2s")
    for i in range(8):
        (m.path / f"w{i}").write_bytes(blob(i, 100_000))
    there = len(data_files(base / disk))
    assert 0 < there < 8
    (base / disk / "fault").write_text(fault)
    try:
        assert eventually(lambda: len(m.status()["unreachable"]) == there, BYPASSED_S)
        assert all(name in m.log() for name in m.status()["unreachable"])
    finally:
        (base / disk / "fault").unlink()


@pytest.mark.timeout(480)
@pytest.mark.parametrize("size", [0, 5 * MIB, 300 * MIB])
def test_the_only_disk_fails_under_a_file_of_any_size(make_mount, store, base, size):
    """One being written, one that is not published, one that is clean. With the disk there again all of them are whole."""
    m = make_mount(cache_dir=base / "a", disk_faults=True, passthrough="off", fault=NO_PUBLISH, op_timeout="5s")
    files = {"clean": blob("clean", size), "kept": blob("kept", min(size, 5 * MIB)), "open": blob("open", size)}
    store.put("clean", files["clean"])
    check(m, {"clean": files["clean"]})
    (m.path / "kept").write_bytes(files["kept"])
    with open(m.path / "open", "wb", buffering=0) as f:
        f.write(files["open"])
        os.fsync(f.fileno())
        (base / "a" / "fault").write_text("eio")
        with pytest.raises(OSError) as e:
            f.write(b"one more")
            os.fsync(f.fileno())
        assert e.value.errno == errno.EIO
        check_past_the_page_cache(m, {"clean": files["clean"]})
        assert is_bypassed(m, "a")
        assert eventually(lambda: "kept" in m.status()["unreachable"], BYPASSED_S), "it is named"
        (base / "a" / "fault").unlink()
    m.remount(fault=None)
    m.wait(timeout=300)
    check(m, files)
    assert {name: store.get(name) == data for name, data in files.items()} == dict.fromkeys(files, True)


def test_without_any_disk_reads_come_from_the_store_and_writes_fail(make_mount, store, base):
    m = make_mount(cache_dir=base / "a", disk_faults=True, passthrough="off")
    files = fill(m, store, n=3)
    (base / "a" / "fault").write_text("eio")
    store.put("fresh.bin", blob("fresh", 3 * MIB))
    files["fresh.bin"] = blob("fresh", 3 * MIB)
    assert eventually(lambda: (m.path / "fresh.bin").exists())
    check(m, files)
    assert is_bypassed(m, "a")
    check_past_the_page_cache(m, files)
    with pytest.raises(OSError):
        (m.path / "new").write_bytes(b"x")
    with pytest.raises(OSError):
        with open(m.path / "f0.bin", "r+b") as f:
            f.write(b"x")
    assert "no cache disk can be used" in m.log()


# ---- memory ----

@pytest.fixture
def memory(make_mount):
    if os.geteuid() != 0:
        pytest.skip("a memory file system needs root")
    return lambda **options: make_mount(**{"memory_cache": "64M", **options})


def test_small_files_live_in_memory_until_unmount(memory, store):
    m = memory(read_only=True)
    files = fill(m, store, n=8)
    assert tiers(m)["memory"]["used_bytes"] >= 8 * MIB
    assert data_files(m.cache) == []
    with open(m.path / "f1.bin", "rb") as f:
        assert m.info("f1.bin")["io"] == ("passthrough" if m.status()["passthrough"] else "cached")
        assert f.read() == files["f1.bin"]
    before = m.status()["downloaded_bytes"]
    check(m, files)
    assert m.status()["downloaded_bytes"] == before
    m.remount()
    assert tiers(m)["memory"]["used_bytes"] == 0
    check(m, files)
    m.kill9()
    m.mount()
    check(m, files)


def test_a_file_in_memory_can_be_changed_while_it_is_read(memory, store):
    m = memory()
    files = fill(m, store, n=1)
    with open(m.path / "f0.bin", "rb", buffering=0) as f:
        assert m.info("f0.bin")["io"] == "cached"
        assert f.read(10) == files["f0.bin"][:10]
        with open(m.path / "f0.bin", "r+b", buffering=0) as w:
            w.write(b"changed")
        f.seek(0)
        assert f.read(7) == b"changed"


def test_a_checkpoint_pinned_in_memory_is_not_changed_while_it_is_read(memory, store):
    m = memory()
    files = fill(m, store, n=1)
    run("pin", "--memory", m.path / "f0.bin")
    assert eventually(lambda: m.info("f0.bin")["io"] == "closed")
    with open(m.path / "f0.bin", "rb") as f:
        if m.info("f0.bin")["io"] != "passthrough":
            pytest.skip("no passthrough here")
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_TRUNC):
            with pytest.raises(OSError) as refused:
                os.open(m.path / "f0.bin", flags)
            assert refused.value.errno == errno.ETXTBSY
        assert f.read() == files["f0.bin"]
    assert eventually(lambda: m.info("f0.bin")["io"] == "closed")
    (m.path / "f0.bin").write_bytes(b"new")
    m.wait()
    assert store.get("f0.bin") == b"new"


def test_a_changed_file_leaves_memory(memory, store):
    m = memory()
    files = fill(m, store, n=2)
    with open(m.path / "f0.bin", "r+b") as f:
        f.seek(1000)
        f.write(b"changed")
    want = bytearray(files["f0.bin"])
    want[1000:1007] = b"changed"
    assert (m.path / "f0.bin").read_bytes() == bytes(want)
    assert len(data_files(m.cache)) == 1
    m.wait()
    assert store.get("f0.bin") == bytes(want)
    assert tiers(m)["memory"]["dirty_bytes"] == 0


def test_a_file_changed_by_a_kill_is_not_lost_with_the_memory(memory, store):
    m = memory(fault=NO_PUT, op_timeout="2s")
    fill(m, store, n=2)
    with open(m.path / "f1.bin", "r+b") as f:
        f.write(b"survives")
    m.kill9()
    m.mount(fault=None)
    assert (m.path / "f1.bin").read_bytes()[:8] == b"survives"


def test_a_pinned_checkpoint_lives_in_memory_and_survives_pressure(memory, store):
    m = memory(cache_size="64M", part_size="5M", prefetch="off") # which would fetch siblings while downloads are counted
    data = blob("ckpt", 24 * MIB)
    (m.path / "ckpt.pt").write_bytes(data)
    m.wait()
    run("pin", "--memory", m.path / "ckpt.pt")
    assert eventually(lambda: tiers(m)["memory"]["used_bytes"] >= 24 * MIB)
    assert data_files(m.cache) == []
    for i in range(40):
        store.put(f"p{i}", blob(i, 4 * MIB))
    assert eventually(lambda: (m.path / "p39").exists())
    for i in range(40):
        assert (m.path / f"p{i}").read_bytes() == blob(i, 4 * MIB)
    assert tiers(m)["memory"]["used_bytes"] >= 24 * MIB
    before = m.status()["downloaded_bytes"]
    assert (m.path / "ckpt.pt").read_bytes() == data
    assert m.status()["downloaded_bytes"] == before
    m.remount()
    assert (m.path / "ckpt.pt").read_bytes() == data
    assert tiers(m)["memory"]["used_bytes"] >= 24 * MIB, "fetched again, it is in memory again"
    assert m.info("ckpt.pt")["pinned"]
    run("unpin", m.path / "ckpt.pt")
    assert not m.info("ckpt.pt")["pinned"]


def test_what_is_written_in_a_directory_pinned_in_memory_lives_there(memory, store):
    m = memory()
    (m.path / "ckpt").mkdir()
    run("pin", "--memory", m.path / "ckpt")
    data = blob("new", 24 * MIB)  # too large to be put there without a wish
    (m.path / "ckpt/step1").mkdir()
    (m.path / "ckpt/step1/rank0.pt").write_bytes(data)
    m.wait()
    assert eventually(lambda: tiers(m)["memory"]["used_bytes"] >= 24 * MIB)
    assert data_files(m.cache) == []
    assert (m.path / "ckpt/step1/rank0.pt").read_bytes() == data


def test_pin_to_memory_needs_a_memory_cache(mount, store):
    store.put("x", b"x")
    refused = run("pin", "--memory", mount.path / "x", check=False)
    assert refused.returncode == 1 and "--memory-cache" in refused.stdout + refused.stderr


def test_a_read_only_file_system_is_a_failed_disk(make_mount, store, base):
    image, at = base / "image", base / "disk"
    at.mkdir()
    if sh(f"truncate -s 256M {image} && mkfs.ext4 -q {image} && mount -o loop {image} {at}", check=False).returncode:
        pytest.skip("no loop devices here")
    try:
        m = make_mount(cache_dir=f"{base}/a:{at}/cache")
        files = fill(m, store)
        sh(f"mount -o remount,abort {at}", check=False)
        assert eventually(lambda: tiers(m)["cache"]["state"] == "bypassed")
        check(m, files)
        for i in range(4):
            (m.path / f"after{i}").write_bytes(blob(i, MIB))
        m.wait()
        m.umount()
    finally:
        sh(f"umount -l {at}", check=False)
