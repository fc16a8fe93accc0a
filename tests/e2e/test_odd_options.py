"""What is done about keys that are no names, where it is asked for: a marker's bytes are deleted with its directory (`sluice rmdir --force`)."""
import errno
import os

import lake
import pytest
from mounts import Mount, eventually, run


@pytest.fixture
def bucket(request):
    """A store that has all keys: the gateway, or the server in the test's process where that is not asked for."""
    if os.environ.get("SLUICE_STORE") == "ceph":
        yield request.getfixturevalue("store")
        return
    made = lake.Lake()
    yield made
    made.remove()


@pytest.fixture
def make_bucket_mount(bucket, base):
    made = []

    def make(name="m", start=True, **options):
        made.append(Mount(bucket, base / name, **options))
        return made[-1].mount() if start else made[-1]

    yield make
    for m in made:
        m.finish()


def have(store, key):
    """None: no such object."""
    try:
        return store.get(key)
    except (FileNotFoundError, KeyError):
        return None


def refused(number, call, *args):
    with pytest.raises(OSError) as error:
        call(*args)
    return error.value.errno == number


# ---- rmdir --force ----

def test_a_marker_with_bytes_goes_with_its_directory_only_by_force(bucket, make_bucket_mount):
    bucket.put("d/", b"bytes of the marker")
    bucket.put("e/sub/", b"of the only thing in e")
    m = make_bucket_mount()
    assert refused(errno.ENOTEMPTY, os.rmdir, m.path / "d")
    plain = run("rmdir", m.path / "d", check=False)
    assert plain.returncode == 1 and "--force" in plain.stderr + plain.stdout
    m.wait()
    assert have(bucket, "d/") == b"bytes of the marker" and os.path.isdir(m.path / "d")
    done = run("rmdir", "--force", m.path / "d", m.path / "e/sub")
    assert done.stdout == "removed d\nremoved e/sub\n"
    assert os.listdir(m.path) == ["e"] and os.listdir(m.path / "e") == []
    m.wait()
    assert have(bucket, "d/") is None and have(bucket, "e/sub/") is None
    assert have(bucket, "e/") == b""  # what showed it went
    m.remount()
    assert os.listdir(m.path) == ["e"]


def test_force_takes_no_other_key_along(bucket, make_bucket_mount):
    bucket.put("d/", b"bytes")
    bucket.put("d//x", b"cannot be shown")
    bucket.put("e/", b"bytes")
    bucket.put("e/f", b"a file")
    m = make_bucket_mount()
    for name in ("d", "e"):
        done = run("rmdir", "--force", m.path / name, check=False)
        assert done.returncode == 1 and "not empty" in done.stderr + done.stdout, name
    assert run("rmdir", "--force", m.path / "e/f", check=False).returncode == 1
    assert run("rmdir", "--force", m.path, check=False).returncode == 1
    m.wait()
    assert [have(bucket, k) for k in ("d/", "d//x", "e/", "e/f")] == [b"bytes", b"cannot be shown", b"bytes", b"a file"]
    assert sorted(os.listdir(m.path)) == ["d", "e"]


def test_force_deletes_no_bytes_that_came_later(base, monkeypatch):
    """Another tool writes the marker anew between the command and the delete."""
    store = lake.Lake()
    store.put("d/", b"old")
    plain = store.server.RequestHandlerClass.do_DELETE

    def delete(self):
        if self.path.endswith("/d/"):
            store.put("d/", b"new")
        plain(self)

    monkeypatch.setattr(store.server.RequestHandlerClass, "do_DELETE", delete)
    m = Mount(store, base / "m").mount()
    try:
        run("rmdir", "--force", m.path / "d")
        m.wait()
        assert store.get("d/") == b"new"
        assert eventually(lambda: os.listdir(m.path) == ["d"])
        assert "object was changed elsewhere, it is kept key='d/'" in m.log()
    finally:
        m.finish()
        store.remove()


def test_force_is_refused_where_nothing_may_change(bucket, make_bucket_mount):
    bucket.put("d/", b"bytes")
    m = make_bucket_mount(read_only=True)
    assert "read-only" in run("rmdir", "--force", m.path / "d", check=False).stderr
    assert have(bucket, "d/") == b"bytes" and os.listdir(m.path) == ["d"]


def test_rmdir_removes_an_empty_directory(mount, store):
    """As rmdir(2) does, with and without --force; nothing else."""
    for name in ("a", "b", "c"):
        os.mkdir(mount.path / name)
    (mount.path / "c/f").write_text("x")
    os.symlink("a", mount.path / "link")
    mount.wait()
    run("rmdir", mount.path / "a")
    run("rmdir", "--force", mount.path / "b")
    for name in ("a", "c", "c/f", "link"):
        for force in ([], ["--force"]):
            assert run("rmdir", *force, mount.path / name, check=False).returncode == 1, name
    mount.wait()
    assert sorted(os.listdir(mount.path)) == ["c", "link"] and (mount.path / "c/f").read_text() == "x"
    assert store.head("a/") is None and store.head("b/") is None
    assert run("rmdir", check=False).returncode == 2
