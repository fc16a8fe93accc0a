"""What is done about keys that are no names, where it is asked for: bytes of a marker are deleted with its directory, and what is hidden is shown under another name."""
import errno
import os

import lake
import pytest
from mounts import Mount, eventually, run
from test_events import Daemon


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


def test_a_replaced_object_beside_a_directory_is_found_by_who_reads_it(bucket, make_bucket_mount):
    """As any other one is: the read fails, and opened again it is what is there now, however old its directory's listing may be."""
    for key in ("d/a", "d/a/x", "d/b", "d/b/x"):
        bucket.put(key, b"one")
    m = make_bucket_mount(shadow=".object", metadata_ttl="1h")
    at, other = m.path / "d/a.object", m.path / "d/b.object"
    assert at.stat().st_size == other.stat().st_size == 3
    bucket.put("d/a", b"two and more")
    assert refused(errno.ESTALE, at.read_bytes)
    assert eventually(lambda: shows(at, b"two and more"))
    bucket.delete("d/b")
    assert not shows(other, b"one")
    assert eventually(lambda: sorted(os.listdir(m.path / "d")) == ["a", "a.object", "b"])


def test_an_event_of_a_name_that_no_object_has_takes_no_shown_one_away(bucket, make_bucket_mount, base):
    """A late one of an object that had the name before."""
    for key in ("d/a", "d/a/x"):
        bucket.put(key, b"one")
    bucket.bucket = getattr(bucket, "bucket", lake.BUCKET)
    told = Daemon(make_bucket_mount, base, shadow=".object")
    at = told.path / "d/a.object"
    before = at.stat()
    told.tell("d/a.object", "ObjectRemoved:Delete")
    bucket.put("d/k", b"k")
    told.tell("d/k")
    assert eventually(lambda: told.count("applied") >= 1 and (told.path / "d/k").exists())
    assert sorted(os.listdir(told.path / "d")) == ["a", "a.object", "k"] and at.stat().st_ino == before.st_ino
    bucket.put("d/a.object", b"real")
    told.tell("d/a.object")
    assert eventually(lambda: shows(at, b"real"))


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


# ---- --escape percent ----

ODD = {"x//f": "x/%2F/f", "tr//": None, "/lead": "%2F/lead", "./f": "%2E/f", "../f": "%2E%2E/f", ".": None, "..": None, "a/../b": "a/%2E%2E/b", "n/./f": "n/%2E/f", "n//": None,
       "q/.": "q/%2E", "q/..": "q/%2E%2E", "//both": "%2F/%2F/both", "p/%2F": "p/%252F", "p/%2E/f": "p/%252E/f", "p/%2E%2E": "p/%252E%2E", "p/%252F": "p/%25252F",
       "p/%2f": "p/%2f", "p/%41": "p/%41", "p/%2F2": "p/%2F2", "p/..%2F": "p/..%2F"}
DIRS = {"tr//": "tr/%2F", "n//": "n/%2F"}


def put_odd(bucket):
    """By another tool, as far as the store takes them; what was put."""
    put = {}
    for key in ODD:
        if bucket.kind == "ceph":
            from test_odd_keys import Keys
            if not Keys(bucket).put(key.encode(), b"of " + key.encode()):
                continue
        else:
            bucket.put(key, b"of " + key.encode())
        put[key] = b"of " + key.encode()
    return put


def raw(bucket, key):
    if bucket.kind != "ceph":
        return have(bucket, key)
    from test_odd_keys import Keys
    return Keys(bucket).get(key.encode())


def test_odd_keys_are_shown_by_other_names_and_used_like_others(bucket, make_bucket_mount):
    put = put_odd(bucket)
    assert {"x//f", "/lead", "../f", "p/%2F", "tr//"} <= set(put)
    m = make_bucket_mount(escape="percent")
    paths = {key: path for key, path in ODD.items() if path and key in put}
    for key, path in paths.items():
        assert (m.path / path).read_bytes() == put[key], key
        assert m.info(path)["key"] == key
    for key in set(DIRS) & set(put):
        assert os.path.isdir(m.path / DIRS[key])
        assert os.getxattr(m.path / DIRS[key], "user.sluice.marker") == put[key]
        assert refused(errno.ENOTEMPTY, os.rmdir, m.path / DIRS[key])
        run("rmdir", "--force", m.path / DIRS[key])
    found = {os.path.relpath(os.path.join(top, name), m.path) for top, _, files in os.walk(m.path) for name in files}
    assert found == set(paths.values())  # "." and ".." have directories of their names beside them
    for i, (key, path) in enumerate(sorted(paths.items())):
        if i % 3 == 0:
            (m.path / path).write_bytes(b"ours " + key.encode())
        elif i % 3 == 1:
            (m.path / path).unlink()
        else:
            os.rename(m.path / path, m.path / f"moved{i}")
    m.wait()
    assert not any(raw(bucket, key) for key in DIRS)
    for i, (key, _) in enumerate(sorted(paths.items())):
        now = raw(bucket, key)
        assert now == (b"ours " + key.encode() if i % 3 == 0 else None), key
        if i % 3 == 2:
            assert raw(bucket, f"moved{i}") == put[key]
    m.remount()
    for i, (key, path) in enumerate(sorted(paths.items())):
        assert shows(m.path / path, b"ours " + key.encode()) == (i % 3 == 0), key
    m.umount()
    assert "%2" not in run("fsck", m.cache, env=m.env).stdout  # what it finds in the store is what the database says


def test_what_is_made_by_such_names_has_the_odd_keys(bucket, make_bucket_mount):
    m = make_bucket_mount(escape="percent", part_size="5M")
    os.makedirs(m.path / "d/%2F/%2F")
    os.mkdir(m.path / "d/%2E%2E")
    big = os.urandom(11 << 20)
    (m.path / "d/%2F/f").write_text("x")
    (m.path / "d/%2F/%2F/big").write_bytes(big)
    (m.path / "d/%2E%2E/evil").write_text("not above")
    (m.path / "d/%2E").write_text("dot")
    (m.path / "d/%252F").write_text("percent")
    (m.path / "file").write_text("file")
    m.wait()
    for key, data in {"d//f": b"x", "d///big": big, "d/../evil": b"not above", "d/.": b"dot", "d/%2F": b"percent"}.items():
        assert raw(bucket, key) == data, key
    for make in (lambda: (m.path / "d2/%2F").write_text("no"), lambda: os.symlink("x", m.path / "d2/%2F"), lambda: os.mkfifo(m.path / "d2/%2F"),
                 lambda: os.rename(m.path / "file", m.path / "d2/%2F"), lambda: os.link(m.path / "file", m.path / "d2/%2F")):
        os.makedirs(m.path / "d2", exist_ok=True)
        assert refused(errno.EINVAL, make)
    os.rename(m.path / "d", m.path / "e")
    os.rename(m.path / "e/%2E%2E", m.path / "%2F")
    m.wait()
    assert raw(bucket, "e///big") == big and raw(bucket, "/evil") == b"not above" and raw(bucket, "e/.") == b"dot" and raw(bucket, "d//f") is None
    for path in ("e/%2F/%2F/big", "e/%2F/f"):
        (m.path / path).unlink()
    os.rmdir(m.path / "e/%2F/%2F")
    os.rmdir(m.path / "e/%2F")
    m.wait()
    m.remount()
    assert sorted(os.listdir(m.path / "e")) == ["%252F", "%2E"] and sorted(os.listdir(m.path)) == ["%2F", "d2", "e", "file"]
    assert m.status()["parked"] == 0


def test_the_choice_of_names_belongs_to_the_cache_folder(bucket, make_bucket_mount):
    bucket.put("p/%2F", b"p")
    m = make_bucket_mount()
    assert os.listdir(m.path / "p") == ["%2F"]
    m.umount()
    told = run(*m.arguments({"escape": "percent"}), env=m.env, check=False)
    assert told.returncode == 1 and "was used with --escape none" in told.stderr
    m.mount()
    other = make_bucket_mount("other", escape="percent")
    assert os.listdir(other.path / "p") == ["%252F"]
    other.umount()
    told = run(*other.arguments({"escape": None}), env=other.env, check=False)
    assert told.returncode == 1 and "was used with --escape percent" in told.stderr
    other.mount()


def test_names_that_would_be_too_long_stay_hidden_and_counted(bucket, make_bucket_mount):
    long = "%" + "25" * 126 + "2F"  # 255 bytes, of which an escaped one has 257
    bucket.put("d/" + long, b"x")
    bucket.put("d/ok", b"ok")
    m = make_bucket_mount(escape="percent")
    assert os.listdir(m.path / "d") == ["ok"]
    assert m.status()["hidden_keys"] == 1 and m.info("d")["hidden_keys"] == ["d/" + long]
    (m.path / "d/ok").unlink()
    assert refused(errno.ENOTEMPTY, os.rmdir, m.path / "d")


def test_odd_keys_are_listed_warmed_and_synced_with_all_others(bucket, make_bucket_mount, base):
    """Directories that are small and many are listed together; the store's order is not that of names then."""
    names = ["%2F", "%2E", "!a", "&b", "+c", "-d", ".e", "0f", "~g"]
    for i in range(12):
        for name in names:
            bucket.put(f"d{i:02}/{'' if name == '%2F' else '.' if name == '%2E' else name}/f", b"x")
    bucket.put("/top", b"t")
    m = make_bucket_mount(escape="percent", metadata_ttl="1s")
    for _ in range(3):
        run("sync", m.path)
        for i in range(12):
            assert sorted(os.listdir(m.path / f"d{i:02}")) == sorted(names), i
            for name in names:
                assert os.listdir(m.path / f"d{i:02}/{name}") == ["f"]
    listed = base / "list"
    listed.write_text(f"{bucket.source}/d00//f\n{bucket.source}/d01/./f\n{bucket.source}/d02/!a/f\n{bucket.source}//top\n")
    run("warmup", "--files-from", listed, m.path)
    for path in ("d00/%2F/f", "d01/%2E/f", "d02/!a/f", "%2F/top"):
        assert m.info(path)["cached_bytes"] == 1, path


@pytest.mark.directory
def test_a_directory_as_store_takes_no_odd_key(store, make_mount):
    """What looks like a replacement is shown by another name there too; one that stands for something cannot be made."""
    store.put("d/%2F", b"percent")
    m = make_mount(escape="percent")
    assert os.listdir(m.path / "d") == ["%252F"] and (m.path / "d/%252F").read_bytes() == b"percent"
    for make in (lambda: os.mkdir(m.path / "d/%2F"), lambda: os.mkdir(m.path / "%2E%2E"), lambda: (m.path / "d/%2E").write_text("no"),
                 lambda: os.rename(m.path / "d", m.path / "%2F")):
        assert refused(errno.EINVAL, make)
    (m.path / "d/%252E").write_text("like a dot")
    os.rename(m.path / "d/%252F", m.path / "d/plain")
    m.wait()
    assert store.get("d/%2E") == b"like a dot" and store.get("d/plain") == b"percent" and store.head("d/%2F") is None
    assert m.status()["parked"] == 0


def test_the_next_worker_goes_on_with_both(bucket, make_bucket_mount):
    for key in ("x//f", "a", "a/y"):
        if bucket.kind != "ceph":
            bucket.put(key, b"of " + key.encode())
        else:
            from test_odd_keys import Keys
            assert Keys(bucket).put(key.encode(), b"of " + key.encode())
    m = make_bucket_mount(escape="percent", shadow=".object")
    with open(m.path / "x/%2F/new", "wb") as f:
        f.write(b"half ")
        m.kill_worker()
        f.write(b"whole")
    assert (m.path / "x/%2F/f").read_bytes() == b"of x//f" and (m.path / "a.object").read_bytes() == b"of a"
    assert refused(errno.EPERM, (m.path / "a.object").unlink)
    m.wait()
    assert raw(bucket, "x//new") == b"half whole" and raw(bucket, "a") == b"of a"
