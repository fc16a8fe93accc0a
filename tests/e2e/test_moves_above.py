"""Files that take the names of directories and go below their own, directories that take those of files: by plain programs, on either store, also while somebody waits for the store."""
import os
import shutil
import time

import lake
import pytest
from mounts import Mount, eventually
from test_moves import exchange, objects

# What may pass while nothing was published yet, or after all was.
SLOW = "op=put,action=delay:300ms;op=copy,action=delay:300ms;op=delete,action=delay:300ms"
TREE = {"d/x": b"below", "d/sub/y": b"deeper", "f": b"file", "g": b"another"}


def tree(top):
    return {os.path.relpath(os.path.join(where, n), top): open(os.path.join(where, n), "rb").read() for where, _, names in os.walk(top) for n in names}


def fill(top):
    for path, data in TREE.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(data)


def carry_out(m, held_up):
    """Every move in a directory of its own; what is to be seen in the mount then."""
    want = {}
    for move in MOVES:
        top = m.path / move.__name__
        if held_up:
            (top / "first").write_bytes(b"1")  # what follows waits for it, so that nothing is carried out before all is asked for
            want[f"{move.__name__}/first"] = b"1"
        want.update({f"{move.__name__}/{path}": data for path, data in move(top).items()})
    return want


def settled(m, store, want):
    """The mount shows it at once, the bucket when all is published, and a listing of that shows nothing else."""
    assert tree(m.path) == want
    m.wait(timeout=120)
    assert objects(store) == want
    assert m.status()["conflicts"] == 0 and m.status()["parked"] == 0
    time.sleep(1.2)
    assert tree(m.path) == want


def file_at_the_name_of_a_moved_directory(top):
    os.rename(top / "d", top / "e")
    (top / "d").write_bytes(b"new")
    return {"e/x": b"below", "e/sub/y": b"deeper", "d": b"new", "f": b"file", "g": b"another"}


def file_moved_to_the_name_of_a_moved_directory(top):
    os.rename(top / "d", top / "e")
    os.rename(top / "f", top / "d")
    return {"e/x": b"below", "e/sub/y": b"deeper", "d": b"file", "g": b"another"}


def file_out_of_a_directory_to_its_name(top):
    os.rename(top / "d/x", top / "t")
    shutil.rmtree(top / "d")
    os.rename(top / "t", top / "d")
    return {"d": b"below", "f": b"file", "g": b"another"}


def file_below_its_own_name(top):
    os.rename(top / "f", top / "t")
    (top / "f").mkdir()
    os.rename(top / "t", top / "f/t")
    return {**{k: v for k, v in TREE.items() if k != "f"}, "f/t": b"file"}


def file_deep_below_its_own_name(top):
    os.rename(top / "f", top / "t")
    (top / "f/f/f").mkdir(parents=True)
    os.rename(top / "t", top / "f/f/f/f")
    return {**{k: v for k, v in TREE.items() if k != "f"}, "f/f/f/f": b"file"}


def file_into_the_directory_that_takes_its_name(top):
    os.rename(top / "f", top / "d/f")
    os.rename(top / "d", top / "f")
    return {"f/x": b"below", "f/sub/y": b"deeper", "f/f": b"file", "g": b"another"}


def directory_to_the_name_of_a_removed_file(top):
    os.unlink(top / "f")
    os.rename(top / "d", top / "f")
    return {"f/x": b"below", "f/sub/y": b"deeper", "g": b"another"}


def directory_below_its_own_name(top):
    os.rename(top / "d", top / "t")
    (top / "d").mkdir()
    os.rename(top / "t", top / "d/d")
    return {"d/d/x": b"below", "d/d/sub/y": b"deeper", "f": b"file", "g": b"another"}


def subdirectory_to_the_name_of_its_parent(top):
    os.rename(top / "d/sub", top / "t")
    shutil.rmtree(top / "d")
    os.rename(top / "t", top / "d")
    return {"d/y": b"deeper", "f": b"file", "g": b"another"}


def file_and_directory_change_places(top):
    exchange(top / "d", top / "f")
    return {"f/x": b"below", "f/sub/y": b"deeper", "d": b"file", "g": b"another"}


def there_and_back(top):
    file_at_the_name_of_a_moved_directory(top)
    os.unlink(top / "d")
    os.rename(top / "e", top / "d")
    return TREE


def twice_in_a_row(top):
    os.rename(top / "d", top / "e")
    os.rename(top / "f", top / "d")
    os.rename(top / "e", top / "f")
    os.rename(top / "g", top / "e")
    return {"f/x": b"below", "f/sub/y": b"deeper", "d": b"file", "e": b"another"}


MOVES = [file_at_the_name_of_a_moved_directory, file_moved_to_the_name_of_a_moved_directory, file_out_of_a_directory_to_its_name, file_below_its_own_name,
         file_deep_below_its_own_name, file_into_the_directory_that_takes_its_name, directory_to_the_name_of_a_removed_file, directory_below_its_own_name,
         subdirectory_to_the_name_of_its_parent, file_and_directory_change_places, there_and_back, twice_in_a_row]


def fill_all(m):
    for move in MOVES:
        fill(m.path / move.__name__)


@pytest.mark.parametrize("published", [True, False], ids=["published", "not_yet"])
def test_names_are_those_of_the_mount(make_mount, store, published):
    m = make_mount(fault=SLOW)
    fill_all(m)
    if published:
        m.wait()
    settled(m, store, carry_out(m, published))


def test_names_are_those_of_the_mount_after_a_kill(make_mount, store):
    m = make_mount(fault=SLOW)
    fill_all(m)
    m.wait()
    want = carry_out(m, True)
    m.kill9()
    m.mount()
    settled(m, store, want)


@pytest.mark.parametrize("order", ["ancestor", "none"])
def test_who_waits_for_the_store_is_answered(make_mount, store, order):
    m = make_mount(fsync="remote", op_timeout="30s", order=order)
    fill_all(m)
    m.wait()
    want = carry_out(m, False)
    for path in sorted(want):
        fd = os.open(m.path / path, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        assert store.get(path) == want[path]
    settled(m, store, want)


@pytest.fixture
def refusing(base):
    """A bucket in which `d` and `d/x` may stand beside each other, and a mount whose credentials may not delete."""
    bucket = lake.Lake()
    m = Mount(bucket, base / "m", fault="op=delete,action=error:-EACCES")
    m.mount()
    yield m, bucket
    try:
        m.finish()
    finally:
        bucket.remove()


def test_files_are_published_though_nothing_can_be_deleted(refusing):
    m, bucket = refusing
    fill(m.path)
    m.wait()
    os.unlink(m.path / "f")
    (m.path / "f").mkdir()
    (m.path / "f/below").write_bytes(b"1")
    shutil.rmtree(m.path / "d")
    (m.path / "d").write_bytes(b"2")
    (m.path / "later").write_bytes(b"3")
    assert eventually(lambda: [bucket.objects.get(k, [None])[0] for k in ("f/below", "d", "later")] == [b"1", b"2", b"3"])
    assert bucket.get("d/x") == TREE["d/x"] and bucket.get("f") == TREE["f"]
    want = {"f/below": b"1", "d": b"2", "later": b"3", "g": TREE["g"]}
    time.sleep(1.2)
    assert tree(m.path) == want
    m.remount(fault=None)
    m.wait(timeout=60)
    assert {k: bucket.get(k) for k in bucket.list() if not k.endswith("/")} == want
    assert eventually(lambda: tree(m.path) == want)


@pytest.mark.directory  # a bucket takes both names
def test_what_waits_for_a_delete_that_is_refused_tells_why(make_mount, store):
    m = make_mount(fault="op=delete,action=error:-EACCES")
    fill(m.path)
    m.wait()
    os.unlink(m.path / "f")
    (m.path / "f").mkdir()
    (m.path / "f/below").write_bytes(b"1")
    assert eventually(lambda: "blocked_by_error" in m.info("f/below"))
    assert m.info("f/below")["blocked_by"] == "f"
    m.remount(fault=None)
    m.wait(timeout=60)
    assert store.get("f/below") == b"1"
