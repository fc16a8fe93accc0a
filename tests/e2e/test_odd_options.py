"""What is done about keys that are no names, where it is asked for: bytes of a marker are deleted with its directory, and what is hidden is shown under another name."""
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


def shows(path, data):
    """Not while it is another version's, or not there."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


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


# ---- --shadow ----

def test_an_object_beside_a_directory_is_shown_by_its_suffix(bucket, make_bucket_mount):
    bucket.put("a", b"object a")
    bucket.put("a/x", b"x")
    bucket.put("d/b", b"object b")
    bucket.put("d/b-between", b"-")
    bucket.put("d/b/", b"")
    bucket.put("plain", b"plain")
    m = make_bucket_mount(shadow=".object")
    assert (m.path / "d/b.object").read_bytes() == b"object b"  # looked up before anything was listed
    assert sorted(os.listdir(m.path)) == ["a", "a.object", "d", "plain"]
    assert sorted(os.listdir(m.path / "d")) == ["b", "b-between", "b.object"]
    assert (m.path / "a.object").read_bytes() == b"object a" and (m.path / "a/x").read_bytes() == b"x"
    assert m.status()["hidden_keys"] == 0
    assert m.info("a.object")["key"] == "a" and m.info("a.object")["state"] == "clean"
    m.remount()
    assert (m.path / "a.object").read_bytes() == b"object a"
    assert sorted(os.listdir(m.path / "d")) == ["b", "b-between", "b.object"]
    m.umount()
    run("fsck", m.cache, env=m.env)
    m.mount(shadow=None)
    assert eventually(lambda: sorted(os.listdir(m.path)) == ["a", "d", "plain"])
    m.remount(shadow=".o")
    assert eventually(lambda: sorted(os.listdir(m.path)) == ["a", "a.o", "d", "plain"])


def test_what_is_shown_by_a_suffix_is_for_reading(bucket, make_bucket_mount):
    bucket.put("d/a", b"object a")
    bucket.put("d/a/x", b"x")
    m = make_bucket_mount(shadow=".object")
    at, other = m.path / "d/a.object", m.path / "d/other"
    other.write_text("other")
    for change in (lambda: at.write_text("no"), lambda: open(at, "ab"), lambda: os.truncate(at, 1), lambda: os.chmod(at, 0o600), lambda: os.utime(at),
                   at.unlink, lambda: os.rename(at, m.path / "b"), lambda: os.rename(other, at), lambda: os.link(at, m.path / "b"),
                   lambda: os.setxattr(at, "user.x", b"1")):
        assert refused(errno.EPERM, change)
    assert refused(errno.EEXIST, os.mkdir, at) and refused(errno.EEXIST, os.symlink, "x", at)
    assert refused(errno.EEXIST, lambda: open(at, "xb"))
    assert refused(errno.EISDIR, lambda: (m.path / "d/a").write_text("no"))
    run("warmup", at)
    os.rename(m.path / "d", m.path / "moved")
    m.wait()
    assert have(bucket, "d/a") == b"object a" and have(bucket, "d/a.object") is None and have(bucket, "moved/a") is None
    assert have(bucket, "moved/a/x") == b"x" and have(bucket, "moved/other") == b"other"
    assert sorted(os.listdir(m.path / "moved")) == ["a", "other"]
    assert eventually(lambda: shows(m.path / "d/a", b"object a"))


def test_the_real_name_wins_and_the_other_object_is_counted(bucket, make_bucket_mount):
    for name in ("a", "b"):
        bucket.put(name, b"object " + name.encode())
        bucket.put(name + "/x", b"x")
    bucket.put("a.object", b"real a.object")
    bucket.put("b.object/y", b"y")
    bucket.put("l" * 252, b"long")
    bucket.put("l" * 252 + "/x", b"x")
    m = make_bucket_mount(shadow=".object")
    assert sorted(os.listdir(m.path)) == ["a", "a.object", "b", "b.object", "l" * 252]
    assert (m.path / "a.object").read_bytes() == b"real a.object" and os.listdir(m.path / "b.object") == ["y"]
    assert m.status()["hidden_keys"] == 3
    bucket.delete("a.object")
    assert eventually(lambda: shows(m.path / "a.object", b"object a"))
    bucket.put("a.object", b"object a")  # the same bytes: another object all the same
    assert eventually(lambda: m.info("a.object")["key"] == "a.object")
    (m.path / "a.object").write_text("ours")
    m.wait()
    assert have(bucket, "a.object") == b"ours" and have(bucket, "a") == b"object a"


def test_what_is_shown_by_a_suffix_follows_its_object_and_directory(bucket, make_bucket_mount):
    bucket.put("a", b"one")
    m = make_bucket_mount(shadow=".object")
    assert (m.path / "a").read_bytes() == b"one"
    bucket.put("a/x", b"x")
    assert eventually(lambda: sorted(os.listdir(m.path)) == ["a", "a.object"])
    bucket.put("a", b"two and more")
    assert eventually(lambda: shows(m.path / "a.object", b"two and more"))
    bucket.delete("a")
    assert eventually(lambda: os.listdir(m.path) == ["a"])
    bucket.put("a", b"three")
    assert eventually(lambda: sorted(os.listdir(m.path)) == ["a", "a.object"])
    (m.path / "a/x").unlink()
    os.rmdir(m.path / "a")
    m.wait()
    assert have(bucket, "a") == b"three"
    assert eventually(lambda: os.listdir(m.path) == ["a"] and shows(m.path / "a", b"three"))


def test_many_objects_beside_directories_are_shown_at_once(bucket, make_bucket_mount):
    """More than one page and one batch, with other names between an object and its directory."""
    n = 30 if bucket.kind == "ceph" else 1200
    for i in range(n):
        for key in (f"m/{i:04}", f"m/{i:04}-", f"m/{i:04}.", f"m/{i:04}/x"):
            bucket.put(key, b"x%d" % i)
    m = make_bucket_mount(shadow=".object", metadata_ttl="1h")
    assert set(os.listdir(m.path / "m")) == {f"{i:04}{end}" for i in range(n) for end in ("", "-", ".", ".object")}
    assert (m.path / f"m/{n - 1:04}.object").read_bytes() == b"x%d" % (n - 1)
    assert m.status()["hidden_keys"] == 0


def test_a_suffix_costs_no_request(bucket, make_bucket_mount):
    """Without it, and where nothing is hidden: what is asked of the store is the same."""
    if bucket.kind != "lake":
        pytest.skip("counts the requests of the test's own server")
    for i in range(50):
        bucket.put(f"d/f{i}", b"x")
        bucket.put(f"d/s{i}/x", b"x")
    asked = []
    for name, options in (("a", {}), ("b", {"shadow": ".object"})):
        m = make_bucket_mount(name, metadata_ttl="1h", **options)
        bucket.calls.clear()
        assert len(os.listdir(m.path / "d")) == 100 and os.listdir(m.path / "d/s1") == ["x"]
        asked.append([call[:2] for call in bucket.calls])
        m.umount()
    assert asked[0] == asked[1]
