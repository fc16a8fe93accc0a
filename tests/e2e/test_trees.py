"""Whole directories renamed and removed: at once here, side by side and resumable in the store, nothing lost or doubled."""
import concurrent.futures
import os
import shutil
import time

import pytest
from mounts import NIGHT, eventually

N = int(os.environ.get("SLUICE_TREE_FILES") or (10000 if NIGHT else 200))
PATIENCE = 300 + N // 10
pytestmark = pytest.mark.timeout(2 * PATIENCE)


def fill(store, n=N):
    want = {f"s{i % 5}/f{i:05}": b"content %d" % i for i in range(n)}
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(lambda name: store.put(f"old/{name}", want[name]), want))
    return want


def moved(store):
    """Names in the store below the new directory, and below the old one."""
    keys = [k for k in store.list() if not k.endswith("/")]
    return {k for k in keys if k.startswith("new/")}, {k for k in keys if k.startswith("old/")}


def check(store, want):
    new, old = moved(store)
    assert new == {f"new/{name}" for name in want} and not old
    assert {name: store.get(f"new/{name}") for name in list(want)[::17]} == {name: want[name] for name in list(want)[::17]}


def test_renamed_directory_is_there_at_once_whatever_the_store_does(make_mount, store):
    want = fill(store)
    m = make_mount(fault="op=copy,action=delay:600s", metadata_ttl="1h")
    began = time.monotonic()
    os.rename(m.path / "old", m.path / "new")
    assert time.monotonic() - began < 300  # as long as one copy
    assert not (m.path / "old").exists()
    seen = {f"{d.name}/{f.name}" for d in (m.path / "new").iterdir() for f in d.iterdir()}
    assert seen == set(want)
    name = next(iter(want))
    assert (m.path / "new" / name).read_bytes() == want[name]
    assert moved(store) == (set(), {f"old/{n}" for n in want})
    m.kill9()
    m.options.pop("fault")
    m.mount()
    m.wait(timeout=PATIENCE)
    check(store, want)


def test_rename_cut_off_by_kills_is_carried_to_its_end(make_mount, store):
    want = fill(store)
    m = make_mount(fault="op=copy,action=delay:50ms;op=delete,action=delay:50ms", metadata_ttl="1h")
    os.rename(m.path / "old", m.path / "new")
    for whole in (False, True, False, True):
        here = len(moved(store)[0])
        assert eventually(lambda here=here: len(moved(store)[0]) > here or not moved(store)[1], 120)
        new, old = moved(store)
        names = {k.split("/", 1)[1] for k in new | old}
        assert names == set(want), "an object is in neither place"
        if whole:
            m.kill9()
            m.mount()
        else:
            assert m.kill_worker()
    seen = {f"{d.name}/{f.name}" for d in (m.path / "new").iterdir() for f in d.iterdir()}
    assert seen == set(want)
    m.wait(timeout=PATIENCE)
    check(store, want)
    assert m.status()["conflicts"] == 0


def test_copies_of_a_rename_run_side_by_side(make_mount, store):
    want = fill(store, 120)
    m = make_mount(fault="op=copy,action=delay:1s", metadata_ttl="1h", max_uploads=8)
    os.rename(m.path / "old", m.path / "new")
    assert eventually(lambda: m.status()["uploading"] >= 4, 60, 0.02)
    m.wait(timeout=PATIENCE)
    check(store, want)


def test_marker_of_a_renamed_checkpoint_appears_after_what_it_points_to(make_mount, store):
    m = make_mount(fault="op=copy,action=delay:100ms", metadata_ttl="1h")
    (m.path / "old").mkdir()
    for i in range(12):
        (m.path / f"old/shard_{i}").write_bytes(b"s" * 100)
    (m.path / "old/.metadata").write_bytes(b"whole")
    m.wait()
    os.rename(m.path / "old", m.path / "new")

    def there():
        new = moved(store)[0]
        assert "new/.metadata" not in new or len(new) == 13, sorted(new)
        return len(new) == 13
    assert eventually(there, 120, 0.01)
    m.wait()
    assert not moved(store)[1]


@pytest.mark.parametrize("closed", [True, False])
def test_directory_renamed_while_a_file_of_it_is_written(mount, store, closed):
    (mount.path / "old").mkdir()
    (mount.path / "old/done").write_bytes(b"done")
    with open(mount.path / "old/log", "wb", buffering=0) as f:
        f.write(b"one")
        if closed:
            mount.wait("old/done")
        os.rename(mount.path / "old", mount.path / "new")
        f.write(b"two")
    mount.wait(timeout=60)
    assert {k: store.get(k) for k in store.list()} == {"new/done": b"done", "new/log": b"onetwo"}


def test_removing_a_tree_costs_two_requests_an_object_at_most(make_mount, store):
    fill(store)
    store.put("keep", b"k")
    m = make_mount(metadata_ttl="1h")
    (m.path / "first").write_bytes(b"what the store can do is found out")
    m.wait()
    assert len(os.listdir(m.path / "old")) == 5
    before = sum(m.status()["requests"].values())
    shutil.rmtree(m.path / "old")
    assert sorted(os.listdir(m.path)) == ["first", "keep"]
    m.wait(timeout=PATIENCE)
    asked = sum(m.status()["requests"].values()) - before
    assert sorted(store.list()) == ["first", "keep"]
    assert asked <= 2 * N + 200, asked


def test_object_changed_elsewhere_survives_the_removal_of_its_tree(make_mount, store):
    store.put("old/a", b"a")
    store.put("old/b", b"b")
    m = make_mount(metadata_ttl="1h", fault="op=delete,action=delay:1s")
    assert sorted(os.listdir(m.path / "old")) == ["a", "b"]
    store.put("old/a", b"changed elsewhere")
    shutil.rmtree(m.path / "old")
    m.wait(timeout=60)
    assert store.list() == {"old/a": 17}
