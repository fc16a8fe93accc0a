"""Copies of large objects are made inside the store: nothing comes here or goes out, and what cp reported as copied stays, whatever becomes of the source."""
import os

import pytest
from mounts import MIB, QUICK, eventually, sh

NOT_VISIBLE = "op=complete,action=error:-EIO"


def traffic(m):
    status = m.status()
    return status["downloaded_bytes"] + status["uploaded_bytes"]


def put_source(store, mib=40):
    data = os.urandom(MIB) * (mib - 1) + os.urandom(12345)
    store.put("src", data)
    return data


def cp(m, what="src dst", options=""):
    sh(f"cd {m.path} && cp {options} {what}")


@pytest.mark.parametrize("options", ["", "-p"])
def test_large_clean_file_is_copied_in_the_store(mount, store, options):
    data = put_source(store, 40 if QUICK or options else 300)
    cp(mount, options=options)
    mount.wait()
    assert traffic(mount) < 32 * MIB
    assert mount.status()["copied_bytes"] >= len(data)
    assert store.get("dst") == data
    assert mount.info("dst")["cached_bytes"] == 0
    if options:
        assert (mount.path / "dst").stat().st_mtime_ns == (mount.path / "src").stat().st_mtime_ns
    assert (mount.path / "dst").read_bytes() == data


def test_copy_over_a_file_that_is_in_the_store(mount, store):
    data = put_source(store)
    store.put("dst", os.urandom(20 * MIB))
    cp(mount)
    mount.wait()
    assert traffic(mount) < 8 * MIB
    assert store.get("dst") == data


def test_copy_is_right_before_it_is_published(make_mount, store):
    data = put_source(store)
    m = make_mount(fault=NOT_VISIBLE)
    cp(m)
    assert store.head("dst") is None
    sh(f"cmp {m.path}/src {m.path}/dst")
    with open(m.path / "dst", "r+b") as f:
        f.seek(10 * MIB + 3)
        f.write(b"changed")
    want = data[:10 * MIB + 3] + b"changed" + data[10 * MIB + 10:]
    assert (m.path / "dst").read_bytes() == want
    m.remount(fault=None)
    m.wait()
    assert store.get("dst") == want


@pytest.mark.parametrize("what", ["replaced elsewhere", "removed elsewhere", "overwritten", "removed", "renamed"])
def test_source_changed_right_after(make_mount, store, what):
    data = put_source(store)
    m = make_mount(fault="op=complete,action=delay:300ms")
    cp(m)
    other = b"other" * 5000
    if what == "replaced elsewhere":
        store.put("src", other)
    elif what == "removed elsewhere":
        store.delete("src")
    elif what == "overwritten":
        (m.path / "src").write_bytes(other)
    elif what == "removed":
        os.unlink(m.path / "src")
    else:
        os.rename(m.path / "src", m.path / "new")
    m.wait()
    assert store.get("dst") == data
    left = {"replaced elsewhere": {"src": other}, "overwritten": {"src": other}, "renamed": {"new": data}}.get(what, {})
    assert {k: store.get(k) for k in store.list() if k != "dst"} == left
    assert (m.path / "dst").read_bytes() == data


def test_copy_renamed_before_it_was_published(make_mount, store):
    data = put_source(store)
    m = make_mount(fault=NOT_VISIBLE)
    cp(m)
    os.rename(m.path / "dst", m.path / "final")
    os.unlink(m.path / "src")
    assert (m.path / "final").read_bytes() == data
    m.remount(fault=None)
    m.wait()
    assert {k: store.get(k) for k in store.list()} == {"final": data}


def kill_and_resume(m, store, data):
    m.kill9()
    store.delete("src")
    m.mount(fault=None)
    before = m.status()["copied_bytes"]
    m.wait()
    assert store.get("dst") == data
    assert m.status()["copied_bytes"] == before
    assert traffic(m) < MIB


def test_daemon_killed_between_close_and_publish(make_mount, store):
    data = put_source(store)
    m = make_mount(fault=NOT_VISIBLE)
    cp(m)
    kill_and_resume(m, store, data)


@pytest.mark.ceph
@pytest.mark.gateway
def test_gateway_stopped_and_daemon_killed_between_close_and_publish(make_mount, store):
    data = put_source(store)
    m = make_mount(fault=NOT_VISIBLE)
    cp(m)
    store.stop_gateway()
    try:
        m.kill9()
        m.mount(fault=None)
        assert (m.path / "dst").stat().st_size == len(data)
    finally:
        store.start_gateway()
    m.wait()
    assert store.get("dst") == data
    assert traffic(m) < MIB


def test_store_without_part_copy_is_copied_through_the_cache(make_mount, store):
    data = put_source(store)
    m = make_mount(fault="op=part-copy,action=error:-EOPNOTSUPP")
    cp(m)
    m.wait()
    assert store.get("dst") == data


def test_part_copies_that_fail_now_and_then(make_mount, store):
    data = put_source(store)
    m = make_mount(fault="op=part-copy,nth=3,count=2,action=error:-EIO")
    cp(m)
    m.wait()
    assert store.get("dst") == data


def copy_range(m, source_off, off, length):
    with open(m.path / "src", "rb") as src, open(m.path / "dst", "r+b") as dst:
        while length > 0:
            n = os.copy_file_range(src.fileno(), dst.fileno(), length, source_off, off)
            if n == 0:
                return
            source_off, off, length = source_off + n, off + n, length - n


def test_pieces_at_any_offset(mount, store):
    data = put_source(store)
    (mount.path / "dst").touch()
    want = bytearray()
    for source_off, off, length in ((0, 0, 20 * MIB + 77), (20 * MIB + 77, 20 * MIB + 77, 9 * MIB), (5, 3 * MIB + 1, 100000),
                                    (30 * MIB, 35 * MIB, MIB)):
        copy_range(mount, source_off, off, length)
        want.extend(bytes(max(0, off + length - len(want))))
        want[off:off + length] = data[source_off:source_off + length]
    assert (mount.path / "dst").read_bytes() == bytes(want)
    mount.wait()
    assert store.get("dst") == bytes(want)


def test_copy_removed_before_it_was_published(make_mount, store):
    put_source(store)
    m = make_mount(fault=NOT_VISIBLE)
    cp(m)
    os.unlink(m.path / "dst")
    m.wait()
    assert set(store.list()) == {"src"}
    assert eventually(lambda: store.uploads() == [])
