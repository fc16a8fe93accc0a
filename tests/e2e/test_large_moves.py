"""A rename of what is too large for one CopyObject (5 GiB): the gateway makes it of parts, nothing is sent again, and it is whole whatever happens meanwhile."""
import os
import pathlib
import shutil
import time

import pytest

from mounts import MIB, NIGHT, eventually, run

GIB = 1 << 30
SIZE = 5 * GIB + 100 * MIB + 777
COPY_PARTS = 6  # of 1 GiB
ROOM = 20 * GIB  # the object, its copy, and what the gateway has not collected yet
# The rest is zeros: these are where the copy's parts meet, and its ends.
MARKS = {off: os.urandom(128) for off in [0, *(i * GIB - 64 for i in range(1, COPY_PARTS)), SIZE - 128]}
pytestmark = [pytest.mark.ceph, pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.skipif(not NIGHT, reason="5 GiB are sent once and copied twice: at night")]


def needs_room():
    gateway = pathlib.Path(os.environ["SLUICE_CEPH_DIR"])
    disk = (gateway / "osd/block").stat().st_size
    if disk < ROOM + 4 * GIB or shutil.disk_usage(gateway).free < ROOM:
        pytest.skip(f"the gateway's disk has {disk / GIB:.0f} GiB (SIZE_GB), the host's {shutil.disk_usage(gateway).free / GIB:.0f} free: {ROOM / GIB:.0f} are needed")


def check_object(store, key):
    head = store.client.head_object(Bucket=store.bucket, Key=key)
    assert head["ContentLength"] == SIZE
    for off, want in MARKS.items():
        got = store.client.get_object(Bucket=store.bucket, Key=key, Range=f"bytes={off}-{off + len(want) - 1}")["Body"].read()
        assert got == want, f"{key} at {off}"
    return head


def check_file(path):
    """As the store gives it."""
    run("evict", path)
    with open(path, "rb", buffering=0) as f:
        for off, want in MARKS.items():
            assert os.pread(f.fileno(), len(want), off) == want, off


def took(what, began):
    print(f"{what}: {time.monotonic() - began:.0f} s")  # shown with -s


def test_rename_above_the_limit_of_one_copy(make_mount, store):
    needs_room()
    m = make_mount(free_space="1%")
    first, second, third = (m.path / name for name in ("first.pt", "second.pt", "third.pt"))
    began = time.monotonic()
    with open(first, "wb", buffering=0) as f:
        os.truncate(f.fileno(), SIZE)
        for off, data in MARKS.items():
            assert os.pwrite(f.fileno(), data, off) == len(data)
    m.wait(timeout=1500)
    took("sent", began)
    check_object(store, first.name)
    mtime, before = first.stat().st_mtime_ns, m.status()

    began = time.monotonic()
    os.rename(first, second)
    m.wait(timeout=900)
    took("renamed", began)
    now = m.status()
    assert store.list() == {second.name: SIZE} and store.uploads() == []
    assert check_object(store, second.name)["ETag"].strip('"').endswith(f"-{COPY_PARTS}")
    assert now["copied_bytes"] - before["copied_bytes"] == SIZE and now["uploaded_bytes"] == before["uploaded_bytes"]
    assert (second.stat().st_size, second.stat().st_mtime_ns) == (SIZE, mtime)
    check_file(second)

    began = time.monotonic()
    os.rename(second, third)
    assert eventually(store.uploads, 60)  # the copy is being made
    m.kill9()
    m.mount()
    m.wait(timeout=900)
    took("renamed, with a kill in the middle", began)
    assert store.list() == {third.name: SIZE}
    check_object(store, third.name)
    assert eventually(lambda: store.uploads() == [], 30)
    assert (third.stat().st_size, third.stat().st_mtime_ns) == (SIZE, mtime)
    check_file(third)
    status = m.status()
    assert status["conflicts"] == status["quarantined"] == status["dirty_files"] == status["uploaded_bytes"] == 0, status
