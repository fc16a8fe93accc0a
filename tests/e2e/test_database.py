"""The database cannot be written for a while: changes fail, nothing else does, and they work again when the disk takes writes."""
import os
import resource
import time

import pytest
from mounts import MIB, eventually, sh


def make_until_refused(m, prefix, before_each=lambda: None):
    """Makes directories until one is refused; those that were made."""
    made = []
    for i in range(20000):
        before_each()
        try:
            os.mkdir(m.path / f"{prefix}{i}")
        except OSError:
            return made
        made.append(f"{prefix}{i}")
    raise AssertionError("never refused")


def takes_changes(m):
    try:
        os.mkdir(m.path / "again")
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def test_writes_work_again_after_one_failed(make_mount, store):
    """Of the log of the database, by a limit that only this worker has."""
    store.put("old", b"1234")
    m = make_mount(settle="1s", free_space="1M")
    assert (m.path / "old").read_bytes() == b"1234"
    (m.path / "closed").write_bytes(b"closed")
    with open(m.path / "open", "wb", buffering=0) as f:
        f.write(b"before")
        pid = m.status()["pid"]
        log = max((m.cache / "meta").glob("*.log"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20000, resource.RLIM_INFINITY))
        made = make_until_refused(m, "d")
        assert made and m.status()["database_failed"]
        assert (m.path / "old").read_bytes() == b"1234" and (m.path / "closed").read_bytes() == b"closed"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert eventually(lambda: takes_changes(m))
        status = m.status()
        assert status["pid"] != pid and not status["database_failed"]
        f.write(b", after")
    assert set(made) < set(os.listdir(m.path))
    m.wait()
    assert store.get("open") == b"before, after" and store.get("closed") == b"closed"


def test_disk_that_was_full_to_the_last_byte(make_mount, store, base):
    """Other programs take what was kept back for the database as well."""
    sh(f"truncate -s 256M {base}/disk && mkfs.ext4 -q {base}/disk && mkdir {base}/small && mount -o loop {base}/disk {base}/small")
    try:
        m = make_mount(cache_dir=base / "small/cache", free_space="16M", settle="1s", fault="op=put,action=error:EIO")
        (m.path / "closed").write_bytes(b"x" * MIB)
        hog = open(base / "small/hog", "wb", buffering=0)

        def fill():
            try:
                while os.statvfs(base / "small").f_bfree > 0:
                    hog.write(b"h" * 65536)
            except OSError:
                pass

        pid = m.status()["pid"]
        made = make_until_refused(m, "d" * 200, fill)
        time.sleep(2.5)  # it does not end itself as long as another one would fare no better
        with pytest.raises(OSError):
            os.mkdir(m.path / "none")
        assert m.status()["pid"] == pid and m.status()["database_failed"]
        assert (m.path / "closed").read_bytes() == b"x" * MIB
        assert "nothing can be changed until its disk takes writes" in m.log()
        hog.close()
        (base / "small/hog").unlink()
        assert eventually(lambda: takes_changes(m))
        assert m.status()["pid"] != pid
        assert set(made) < set(os.listdir(m.path)) and (m.path / "closed").read_bytes() == b"x" * MIB
        (m.path / "after").write_bytes(b"after")
        m.remount(fault=None)
        m.wait()
        assert store.get("closed") == b"x" * MIB and store.get("after") == b"after"
        m.umount()
    finally:
        sh(f"umount {base}/small || umount -l {base}/small")
