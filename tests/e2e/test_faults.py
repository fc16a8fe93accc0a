"""What goes wrong: the store away, wrong keys, no permission, full disk, kill -9, lost database. Nothing written is lost."""
import errno
import os
import random
import shutil
import subprocess
import threading
import time

import pytest
from mounts import MIB, eventually, in_thread, run, sh

DOWN = "op=any,action=error:-EIO"
NO_WRITES = "op=put,action=error:-EIO;op=create,action=error:-EIO;op=part,action=error:-EIO;op=complete,action=error:-EIO"


def read_without_page_cache(path):
    """Of this file only: the machine's other tests count what the kernel keeps."""
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f.read()


def write_files(path, n, size=1000, prefix="f"):
    data = {f"{prefix}{i}": os.urandom(size) for i in range(n)}
    for name, text in data.items():
        (path / name).write_bytes(text)
    return data


def assert_published(store, data):
    assert {k: v for k, v in store.list().items() if k in data} == {k: len(v) for k, v in data.items()}
    for name, text in data.items():
        assert store.get(name) == text, name


def test_failing_uploads_are_tried_again(make_mount, store):
    m = make_mount(fault="op=put,count=5,action=error:-EIO;op=part,count=3,action=error:-EIO;"
                         "op=complete,count=1,action=lost:-EIO")
    data = write_files(m.path, 5) | write_files(m.path, 1, 20 * MIB, "big")
    m.wait()
    assert_published(store, data)


def test_failing_reads_are_tried_again_or_reported_never_wrong(make_mount, store):
    data = os.urandom(20 * MIB)
    store.put("big", data)
    m = make_mount(fault="op=get,prob=0.2,action=short:1000;op=get,prob=0.1,action=error:-EIO", op_timeout="5s")
    with open(m.path / "big", "rb", buffering=0) as f:
        for off in range(0, len(data), MIB):
            for _ in range(20):
                try:
                    assert os.pread(f.fileno(), 65536, off) == data[off:off + 65536]
                    break
                except OSError as e:
                    assert e.errno in (errno.EIO, errno.ETIMEDOUT), e
            else:
                pytest.fail("never readable")


def test_writing_goes_on_while_the_store_is_away_and_umount_is_fast(make_mount, store):
    m = make_mount(fault=NO_WRITES, op_timeout="3s")
    data = write_files(m.path, 20) | write_files(m.path, 1, 20 * MIB, "big")
    for name, text in data.items():
        assert (m.path / name).read_bytes() == text
    assert m.status()["dirty_files"] >= 21
    assert store.list() == {}
    start = time.monotonic()
    m.umount()
    assert time.monotonic() - start < 10
    m.mount(fault=None)
    m.wait()
    assert_published(store, data)


def test_cached_files_are_read_while_the_store_is_away(make_mount, store):
    store.put("d/f", b"cached")
    m = make_mount()
    assert (m.path / "d/f").read_bytes() == b"cached"
    m.remount(fault=DOWN, op_timeout="3s")
    time.sleep(1.5)
    assert (m.path / "d/f").read_bytes() == b"cached"
    assert os.listdir(m.path / "d") == ["f"]


def test_archived_objects_are_eio_and_say_what_to_do(make_mount, store):
    store.put("d/old", os.urandom(1000))
    m = make_mount(fault="op=get,action=error:-ENOMEDIUM")
    with pytest.raises(OSError) as e:
        (m.path / "d/old").read_bytes()
    assert e.value.errno == errno.EIO
    done = run("warmup", m.path / "d", check=False)
    assert done.returncode == 1 and "restore it in the store first" in done.stdout + done.stderr


@pytest.mark.ceph
@pytest.mark.gateway
def test_outage_of_the_gateway_is_survived(make_mount, store):
    m = make_mount(op_timeout="3s")
    data = write_files(m.path, 5, prefix="before")
    m.wait()
    store.stop_gateway()
    try:
        errors = []

        def keep_writing():
            try:
                data.update(write_files(m.path, 40, 20000, "during"))
                data.update(write_files(m.path, 2, 10 * MIB, "large"))
            except OSError as e:
                errors.append(e)

        thread = threading.Thread(target=keep_writing)
        thread.start()
        thread.join(60)
        assert not thread.is_alive() and not errors
        assert sorted(n for n in os.listdir(m.path)) == sorted(data)
        assert (m.path / "before0").read_bytes() == data["before0"]
        time.sleep(5)
        assert m.status()["dirty_files"] >= 42
    finally:
        store.start_gateway()
    m.wait()
    assert_published(store, data)


def test_kill9_with_dirty_files_loses_nothing(make_mount, store):
    m = make_mount(fault=NO_WRITES)
    data = write_files(m.path, 50) | write_files(m.path, 1, 30 * MIB, "big")
    m.kill9()
    m.mount(fault=None)
    for name, text in data.items():
        assert (m.path / name).read_bytes() == text
    m.wait()
    assert_published(store, data)


def test_kill9_in_the_middle_of_uploads(make_mount, store):
    m = make_mount(fault="op=part,action=delay:200ms;op=put,action=delay:50ms")
    foreign = store.begin_upload("big0")
    data = write_files(m.path, 30) | write_files(m.path, 2, 40 * MIB, "big")
    time.sleep(0.3)
    m.kill9()
    m.mount(fault=None)
    m.wait()
    assert_published(store, data)
    theirs = [] if foreign is None else ["big0"]
    assert eventually(lambda: store.uploads(empty=False) == theirs, 20)
    assert store.has_upload("big0", foreign), "somebody else's upload was aborted"
    m.umount()
    assert store.uploads(empty=False) == theirs and store.has_upload("big0", foreign), "somebody else's upload was aborted"


@pytest.mark.slow
def test_kill9_again_and_again(make_mount, store):
    m = make_mount()
    data = {}
    for k in range(10):
        data.update(write_files(m.path, 10, 5000, f"round{k}_"))
        os.rename(m.path / f"round{k}_0", m.path / f"moved{k}")
        data[f"moved{k}"] = data.pop(f"round{k}_0")
        m.kill9()
        m.mount()
    m.wait()
    assert_published(store, data)
    assert set(store.list()) == set(data)


def test_deletes_and_renames_survive_kill9(make_mount, store):
    for i in range(10):
        store.put(f"d/f{i}", b"%d" % i)
    m = make_mount(fault="op=delete,action=error:-EIO;op=copy,action=error:-EIO")
    os.listdir(m.path / "d")
    os.unlink(m.path / "d/f0")
    os.rename(m.path / "d/f1", m.path / "d/renamed")
    m.kill9()
    m.mount(fault=None)
    assert "f0" not in os.listdir(m.path / "d")
    m.wait()
    assert sorted(store.list()) == sorted([f"d/f{i}" for i in range(2, 10)] + ["d/renamed"])
    assert store.get("d/renamed") == b"1"


def test_lost_database_is_rebuilt_by_fsck(make_mount, store):
    m = make_mount(fault=NO_WRITES)
    data = write_files(m.path, 100)
    m.umount()
    shutil.rmtree(m.cache / "meta")
    run("fsck", "--repair", m.cache, timeout=120, env=m.env)
    m.mount(fault=None)
    m.wait()
    assert_published(store, data)


def test_an_open_file_outlives_daemon_and_database(make_mount, store):
    m = make_mount()
    (m.path / "d").mkdir()
    writer = subprocess.Popen(["/usr/bin/python3", "-c", f"""
import os, time
f = open({str(m.path / "d/log")!r}, "wb", buffering=0)
f.write(b"acknowledged by fsync")
os.fsync(f.fileno())
print("written", flush=True)
time.sleep(60)
"""], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "written\n"
        m.kill9()
    finally:
        writer.kill()
        writer.wait(10)
    shutil.rmtree(m.cache / "meta")
    run("fsck", "--repair", m.cache, timeout=120, env=m.env)
    m.mount()
    assert (m.path / "d/log").read_bytes() == b"acknowledged by fsync"
    for verb in (["wait", m.path / "d/log"], ["wait", m.path], ["umount", "--drain", m.path]):
        said = run(*verb, check=False, timeout=30)
        assert said.returncode == 1 and "'d/log' is not published" in said.stderr, said.stderr
    assert "d/log" not in store.list()  # its writer never closed it
    with open(m.path / "d/log", "ab") as f:
        f.write(b", and closed")
    m.wait()
    assert store.get("d/log") == b"acknowledged by fsync, and closed"


def test_full_cache_disk_gives_enospc_and_loses_nothing(make_mount, store, base):
    sh(f"truncate -s 256M {base}/disk && mkfs.ext4 -q {base}/disk && mkdir {base}/small && mount -o loop {base}/disk {base}/small")
    try:
        m = make_mount(cache_dir=base / "small/cache", free_space="16M", fault=NO_WRITES, op_timeout="2s")
        data, failed = {}, None
        for i in range(80):
            text = os.urandom(4 * MIB)
            try:
                (m.path / f"f{i}").write_bytes(text)
                data[f"f{i}"] = text
            except OSError as e:
                failed = e
                break
        assert failed is not None and failed.errno == errno.ENOSPC
        assert len(data) >= 20
        for name, text in data.items():
            assert (m.path / name).read_bytes() == text
        assert m.status()["dirty_files"] >= len(data)
        m.remount(fault=None)
        m.wait()
        assert_published(store, data)
        (m.path / "after").write_bytes(b"room again")
        m.wait()
        m.umount()
    finally:
        sh(f"umount {base}/small || umount -l {base}/small")


@pytest.mark.timeout(480)
@pytest.mark.parametrize("size", [0, 5 * MIB, 300 * MIB])
def test_a_file_of_any_size_meets_a_full_cache_disk(make_mount, store, base, size):
    """An empty one needs no room; of others the write fails, and what was there before is whole. Once there is room all goes on."""
    sh(f"truncate -s {max(2 * size, 256 * MIB)} {base}/disk && mkfs.ext4 -q {base}/disk && mkdir {base}/small && mount -o loop {base}/disk {base}/small")
    try:
        m = make_mount(cache_dir=base / "small/cache", free_space="16M", fault=NO_WRITES, op_timeout="2s")
        first, full = os.urandom(4 * MIB), os.urandom(MIB)
        (m.path / "first").write_bytes(first)
        with pytest.raises(OSError) as e, open(m.path / "filler", "wb", buffering=0) as filler:
            for _ in range(1000):
                filler.write(full)
        assert e.value.errno == errno.ENOSPC
        data = os.urandom(size)
        try:
            (m.path / "f").write_bytes(data)
            assert size == 0, "it fitted"
        except OSError as e:
            assert size > 0 and e.errno == errno.ENOSPC
        assert (m.path / "first").read_bytes() == first
        os.unlink(m.path / "filler")
        (m.path / "f").write_bytes(data)
        assert (m.path / "f").read_bytes() == data
        m.remount(fault=None)
        m.wait(timeout=300)
        assert_published(store, {"first": first, "f": data})
    finally:
        sh(f"umount {base}/small || umount -l {base}/small")


def test_disk_filled_past_us_is_a_failure_of_nothing_but_writes(make_mount, store, base):
    """Close, rename, unlink and upload at no free bytes: what passthrough writers and other programs do to the disk is not held back."""
    sh(f"truncate -s 512M {base}/disk && mkfs.ext4 -q {base}/disk && mkdir {base}/small && mount -o loop {base}/disk {base}/small")
    try:
        m = make_mount(cache_dir=base / "small/cache", free_space="16M", fault=NO_WRITES)
        assert (base / "small/cache/reserve").stat().st_size >= 32 * MIB
        (m.path / "d").mkdir()
        for i in range(8):
            (m.path / f"d/f{i}").write_bytes(os.urandom(MIB))
        late = open(m.path / "d/late", "wb")
        late.write(b"before")
        late.flush()
        subprocess.run(["dd", "if=/dev/zero", f"of={base}/small/filler", "bs=64K"], stderr=subprocess.DEVNULL)
        fs = os.statvfs(base / "small")
        assert fs.f_bfree * fs.f_frsize < 32 * MIB
        late.close()
        for i in range(8):
            os.rename(m.path / f"d/f{i}", m.path / f"d/g{i}")
        for i in range(4):
            os.unlink(m.path / f"d/g{i}")
        m.remount(fault=None)
        m.wait()
        assert sorted(store.list()) == [f"d/g{i}" for i in range(4, 8)] + ["d/late"]
        os.unlink(base / "small/filler")
        (m.path / "after").write_bytes(b"room again")
        m.wait()
        m.umount()
        assert not (base / "small/cache/reserve").exists()
    finally:
        sh(f"umount {base}/small || umount -l {base}/small")


def test_dirty_data_beyond_the_cache_size_is_held_back_then_enospc(make_mount, store):
    m = make_mount(cache_size="64M", fault=NO_WRITES, op_timeout="2s")
    data, failed = {}, None
    for i in range(40):
        text = os.urandom(4 * MIB)
        try:
            (m.path / f"f{i}").write_bytes(text)
            data[f"f{i}"] = text
        except OSError as e:
            failed = e
            break
    assert failed is not None and failed.errno == errno.ENOSPC
    assert data
    m.remount(fault=None)
    m.wait()
    assert_published(store, data)


def test_cyclic_reading_beyond_the_cache_keeps_hits(make_mount, store):
    m = make_mount(cache_size="64M", metadata_ttl="60s")
    for i in range(64):
        store.put(f"d/{i:02}", os.urandom(2 * MIB))

    def epoch():
        for i in range(64):
            assert len(read_without_page_cache(m.path / f"d/{i:02}")) == 2 * MIB

    epoch()
    epoch()
    before = m.status()
    for _ in range(3):
        epoch()
    after = m.status()
    hit, miss = after["hit_bytes"] - before["hit_bytes"], after["miss_bytes"] - before["miss_bytes"]
    assert hit / max(hit + miss, 1) >= 0.40, (hit, miss)
    assert after["cache_bytes"] <= 72 * MIB


def test_small_cache_streams_much_more_than_it_holds(make_mount, store):
    m = make_mount(cache_size="64M")
    data = write_files(m.path, 40, 4 * MIB)
    m.wait()
    assert_published(store, data)
    assert m.status()["cache_bytes"] <= 80 * MIB


def test_second_daemon_on_one_cache_is_refused(make_mount, store, base):
    a = make_mount("a")
    b = make_mount("b", start=False, cache_dir=a.cache)
    done = run(*b.arguments(), check=False, env=b.env)
    assert done.returncode not in (0, None)
    assert len(done.stderr.strip().splitlines()) <= 3 and done.stderr.strip()
    assert not b.is_mounted()
    (a.path / "f").write_bytes(b"the first one goes on")
    a.wait()
    assert store.get("f") == b"the first one goes on"


@pytest.mark.ceph
def test_wrong_keys_are_refused_at_mount_in_one_line(make_mount):
    m = make_mount(start=False)
    m.env.update(AWS_SECRET_ACCESS_KEY="wrongsecret000000000000000000000000000000")
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode != 0 and not m.is_mounted()
    assert "wrongsecret" not in done.stdout + done.stderr
    assert done.stderr.strip()


@pytest.mark.ceph
def test_a_user_without_rights_cannot_mount_or_read(make_mount, store):
    store.put("f", b"secret")
    m = make_mount(start=False)
    m.env.update(AWS_ACCESS_KEY_ID=os.environ["OTHER_ACCESS_KEY_ID"], AWS_SECRET_ACCESS_KEY=os.environ["OTHER_SECRET_ACCESS_KEY"])
    done = run(*m.arguments(), check=False, env=m.env)
    if done.returncode == 0:
        with pytest.raises(OSError) as e:
            (m.path / "f").read_bytes()
        assert e.value.errno in (errno.EACCES, errno.EPERM)
    else:
        assert not m.is_mounted()


@pytest.mark.ceph
def test_read_only_rights_keep_writes_and_say_so(make_mount, store):
    import json
    store.put("f", b"readable")
    rule = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/other"]},
            "Action": ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"],
            "Resource": [f"arn:aws:s3:::{store.bucket}", f"arn:aws:s3:::{store.bucket}/*"]}]}
    store.client.put_bucket_policy(Bucket=store.bucket, Policy=json.dumps(rule))
    m = make_mount(start=False)
    owner = dict(m.env)
    m.env.update(AWS_ACCESS_KEY_ID=os.environ["OTHER_ACCESS_KEY_ID"], AWS_SECRET_ACCESS_KEY=os.environ["OTHER_SECRET_ACCESS_KEY"])
    m.mount()
    assert (m.path / "f").read_bytes() == b"readable"
    try:
        (m.path / "g").write_bytes(b"kept here")
    except OSError as e:
        assert e.errno in (errno.EACCES, errno.EROFS)
        return
    assert eventually(lambda: m.status()["dirty_files"] >= 1, 5)
    assert (m.path / "g").read_bytes() == b"kept here"
    m.umount()
    m.env = owner
    m.mount()
    m.wait()
    assert store.get("g") == b"kept here"


@pytest.mark.ceph
def test_missing_bucket_is_refused_in_one_line_and_binds_no_cache_folder(make_mount, store):
    m = make_mount(source="s3://no-such-bucket-anywhere", start=False)
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode != 0 and not m.is_mounted()
    assert "no-such-bucket-anywhere" in done.stderr
    m.source = store.source
    m.mount()


def test_reader_and_writer_processes_see_no_error_under_a_slow_store(make_mount, store):
    m = make_mount(fault="op=any,action=delay:50ms")
    procs = [subprocess.Popen(["bash", "-c", f"for i in $(seq 20); do echo {k} $i > {m.path}/{k}_$i && cat {m.path}/{k}_$i >/dev/null "
                               "|| exit 1; done"], stdin=subprocess.DEVNULL) for k in range(4)]
    assert [p.wait(timeout=120) for p in procs] == [0] * 4
    m.wait()
    assert len(store.list()) == 80


def test_names_of_a_directory_that_is_slow_to_list_are_served_meanwhile(make_mount, store):
    store.put("d/known", b"x")
    m = make_mount(metadata_ttl="2s", fault="op=list,action=delay:1500ms")
    assert (m.path / "d/known").read_bytes() == b"x"
    time.sleep(2.2)
    store.put("d/new", b"y")
    began = m.status()["requests"]["list"]
    assert (m.path / "d/known").exists()
    with pytest.raises(FileNotFoundError):
        os.stat(m.path / "d/new")
    assert m.status()["requests"]["list"] - began <= 1, "one listing for all who asked"
    assert eventually(lambda: (m.path / "d/new").exists(), 10)


def late_seconds(mount):
    return mount.status()["names_late_seconds"]


def look_until(paths, ended):
    """Looks into all of them in random order, again and again."""
    while not ended.is_set():
        for path in random.sample(paths, len(paths)):
            path.stat()


def test_names_of_more_directories_than_can_be_listed_are_served_meanwhile(make_mount, store):
    for d in range(40):
        store.put(f"set/d{d:02}/known", b"x")
        store.put(f"set/d{d:02}/below/name", b"x")  # so each of them is listed by itself
    m = make_mount(metadata_ttl="1s", fault="op=list,action=delay:400ms")
    known = [m.path / f"set/d{d:02}/known" for d in range(40)]
    ended = threading.Event()
    readers = [in_thread(lambda: look_until(known, ended)) for _ in range(4)]
    served = eventually(lambda: late_seconds(m) >= 50, 60)
    ended.set()
    for reader in readers:
        reader()
    assert served, "the mount never said that the store is too slow"
    assert "names_late_because" in m.status()
    time.sleep(1.2)  # all are out of date
    store.put("set/d07/new", b"y")
    before = m.status()["requests"]["list"]
    assert all(path.exists() for path in known)
    assert all(len(os.listdir(path.parent)) == 2 for path in known if "d07" not in path.parts)
    assert m.status()["requests"]["list"] - before <= 40, "who looks waits for listings: 79 of them"
    assert eventually((m.path / "set/d07/new").exists, 20)
    assert eventually(lambda: late_seconds(m) == 0, 60)
    store.put("set/d08/new", b"y")
    time.sleep(1.2)
    assert eventually((m.path / "set/d08/new").exists, 10)
    assert late_seconds(m) == 0, "one directory is not too many"
