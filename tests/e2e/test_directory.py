"""A directory as the store: what others find in it, and what it has to be."""
import os
import shutil

import pytest
from mounts import Mount, eventually, run

pytestmark = pytest.mark.skipif(os.environ.get("SLUICE_STORE", "file") != "file", reason="of a store that is a directory")


def mode(path):
    return os.stat(path).st_mode & 0o7777


def test_others_may_read_what_a_mount_saves(mount, store):
    old = store.root / "run/theirs"
    store.put("run/theirs", b"x")
    old.chmod(0o644)
    before = os.umask(0o022)
    try:
        (mount.path / "new/deep").mkdir(parents=True)
        (mount.path / "new/deep/f").write_bytes(b"x")
        (mount.path / "run/theirs").write_bytes(b"ours")
        (mount.path / "large").write_bytes(os.urandom(20 << 20))
        os.close(os.open(mount.path / "private", os.O_CREAT | os.O_WRONLY, 0o600))
        mount.wait()
    finally:
        os.umask(before)
    assert old.read_bytes() == b"ours"
    assert [mode(store.root / f) for f in ("new/deep/f", "run/theirs", "large", "private")] == [0o644, 0o644, 0o644, 0o600]
    assert [mode(store.root / d) for d in ("new", "new/deep", ".sluice-tmp")] == [0o755] * 3
    os.rename(mount.path / "run/theirs", mount.path / "moved")
    os.chmod(mount.path / "large", 0o640)
    mount.wait()
    assert eventually(lambda: mode(store.root / "large") == 0o640)
    assert mode(store.root / "moved") == 0o644


def test_what_is_not_mounted_yet_is_no_empty_lake(mount, store):
    (mount.path / "f").write_bytes(b"x")
    mount.wait()
    mount.umount()
    aside = store.root.with_name("aside")
    os.rename(store.root, aside)
    store.root.mkdir()
    for _ in range(2):
        refused = run(*mount.arguments(), check=False)
        assert refused.returncode != 0 and "is it mounted?" in refused.stderr
        assert os.listdir(store.root) == []
    store.root.rmdir()
    os.rename(aside, store.root)
    mount.mount()
    assert (mount.path / "f").read_bytes() == b"x"


def test_a_link_waits_for_its_directory_to_be_mounted(mount, store, base):
    theirs, aside = base / "theirs", base / "aside"
    theirs.mkdir()
    (theirs / "f").write_bytes(b"x")
    run("link", "add", f"file://{theirs}", mount.path / "l")
    assert (mount.path / "l/f").read_bytes() == b"x"
    mount.umount()
    os.rename(theirs, aside)
    theirs.mkdir()
    mount.mount()
    assert "is it mounted?" in run("link", "list", mount.path).stdout
    assert os.listdir(theirs) == []
    theirs.rmdir()
    os.rename(aside, theirs)
    assert eventually(lambda: "is it mounted?" not in run("link", "list", mount.path).stdout, 60)
    (mount.path / "l/g").write_bytes(b"y")
    mount.wait()
    assert sorted(os.listdir(mount.path / "l")) == ["f", "g"] and (theirs / "g").read_bytes() == b"y"


def test_no_link_leads_into_the_mount_itself(make_mount, base):
    """Who serves a mount that it waits for could not be ended."""
    listed, alias, second = base / "links.conf", base / "alias", base / "second"
    m = make_mount(start=False)
    alias.symlink_to(m.path)
    listed.write_text(f"file://{alias}/d l\n")
    m.mount(links=listed)
    assert "lies in the mount" in m.log() and "no links" in run("link", "list", m.path).stdout
    (m.path / "d").mkdir()
    second.mkdir()
    bound = run("--bind", m.path / "d", second, program="mount", check=False).returncode == 0
    try:
        for path in (m.path, m.path / "d", alias / "d", m.base, base, m.cache, second if bound else m.path):
            done = run("link", "add", f"file://{path}", m.path / "l", check=False)
            assert done.returncode == 1 and "lies in" in done.stderr, (path, done.stderr)
    finally:
        if bound:
            run(second, program="umount")
    m.wait()
    assert os.listdir(m.path / "d") == []
    assert m.kill_worker() and os.listdir(m.path) == ["d"]


def test_a_cache_is_no_part_of_the_lake(make_mount, store, base):
    """What is removed in the mount would be the database."""
    (base / "alias").symlink_to(store.root)
    (base / "secret").write_text("x" * 40)
    inside = {"cache_dir": [store.root / ".cache", f"{base}/a:{store.root}/b", base / "alias/c"], "log_file": [store.root / "log"],
              "events_secret_file": [store.root / "secret"]}
    for option, places in inside.items():
        for place in places:
            m = make_mount(start=False, http="127.0.0.1:1", **{option: place})
            done = run(*m.arguments(), check=False)
            assert done.returncode == 2 and f"lies in the source {store.root}," in done.stderr, (place, done.stderr)
    done = run(*make_mount(source="file:///var", start=False, cache_dir=None, read_only=True).arguments(), check=False)
    assert done.returncode == 2 and "/var/cache/sluice lies in the source /var" in done.stderr, done.stderr
    assert os.listdir(store.root) == []
    make_mount().umount()


def test_symbolic_links_in_the_store_lead_nowhere(mount, store, base):
    secret = base / "elsewhere/secret"
    secret.parent.mkdir()
    secret.write_bytes(b"s")
    (store.root / "dir").symlink_to(secret.parent)
    (store.root / "file").symlink_to(secret)
    (store.root / "ours").write_bytes(b"o")
    assert os.listdir(mount.path) == ["ours"]
    for path in ("dir/secret", "dir", "file"):
        assert not os.path.lexists(mount.path / path)
    assert secret.read_bytes() == b"s" and os.listdir(secret.parent) == ["secret"]


def test_a_directory_that_cannot_be_written_is_mounted_read_only(store, base):
    store.put("d/f", b"x")
    where = base / "export"
    where.mkdir()
    run("--bind", store.root, where, program="mount")
    try:
        run("-o", "remount,bind,ro", where, program="mount")
        m = Mount(store, base / "m", f"file://{where}", read_only=True)
        for _ in range(2):
            m.mount()
            assert (m.path / "d/f").read_bytes() == b"x"
            m.umount()
        shutil.rmtree(m.cache)
        refused = run(*m.arguments({"read_only": None}), check=False)
        assert refused.returncode != 0 and "cannot use directory" in refused.stderr
    finally:
        run(where, program="umount")
