"""--journal-dir and --accept-loss: the database on another disk than the cache, and what a mount does when either of the two disks is lost."""
import errno
import os
import shutil
import subprocess

import pytest
from mounts import run

NO_WRITES = "op=put,action=error:-EIO;op=create,action=error:-EIO;op=part,action=error:-EIO;op=complete,action=error:-EIO"


@pytest.fixture
def journal(base):
    return base / "other disk" / "sluice"


def refused(m, *words, **extra):
    """Mounting fails, says this, and leaves no mount."""
    done = run(*m.arguments(extra), env=m.env, check=False)
    assert done.returncode != 0 and not m.is_mounted(), done.stderr
    for word in words:
        assert str(word) in done.stderr, done.stderr
    return done.stderr


def write_files(m, n):
    (m.path / "d").mkdir()
    files = {f"d/f{i:02}": os.urandom(1000 + i) for i in range(n)}
    for name, data in files.items():
        (m.path / name).write_bytes(data)
    return files


def lose(m, what):
    if what == "data":
        for file in m.cache.glob("data/??/*"):
            file.unlink()
    else:
        shutil.rmtree(m.cache)


def database(m):
    return m.cache / "meta"


def test_database_lives_elsewhere_and_is_found_without_the_option(make_mount, store, journal):
    m = make_mount(journal_dir=journal, fault=NO_WRITES)
    files = write_files(m, 3)
    to = database(m).readlink()
    assert to.parent == journal and (to / "CURRENT").exists() and journal.stat().st_mode & 0o777 == 0o700
    assert m.kill_worker()  # the next one finds it as it is
    assert all((m.path / name).read_bytes() == data for name, data in files.items())
    m.kill9()
    m.mount(journal_dir=None, fault=None)
    m.wait()
    assert all(store.get(name) == data for name, data in files.items())
    assert database(m).readlink() == to
    m.remount(fault=None)
    assert sorted(os.listdir(m.path / "d")) == sorted(name[2:] for name in files)


@pytest.mark.parametrize("what", ["data", "folder"])
def test_lost_cache_disk_is_refused_until_the_loss_is_accepted(make_mount, store, journal, what):
    """All names are told. What is accepted is visible, never published, gives EIO, and goes by rm; everything else is served."""
    store.put("edited", b"of the store" * 100)
    store.put("there", b"published")
    m = make_mount(journal_dir=journal, fault=NO_WRITES, order="none")
    assert (m.path / "there").read_bytes() == b"published"
    files = write_files(m, 12)
    with open(m.path / "edited", "r+b") as f:
        f.write(b"OF THE STORE")
    m.kill9()
    lose(m, what)
    for _ in range(2):
        said = refused(m, "13 unpublished files were on it", " and 3 more", "--accept-loss", m.cache, fault=None)
        assert sum(f"'{name}'" in said for name in [*files, "edited"]) == 10
    assert all(f"path='{name}'" in m.log() for name in [*files, "edited"])
    m.mount(accept_loss=True, fault=None)
    assert m.status()["quarantined"] == 13
    m.remount(fault=None)  # nobody is asked twice
    assert m.status()["quarantined"] == 13
    for name in [*files, "edited"]:
        assert m.info(name)["state"] == "quarantined"
        with pytest.raises(OSError) as e:
            (m.path / name).read_bytes()
        assert e.value.errno == errno.EIO
    assert (m.path / "there").read_bytes() == b"published"
    (m.path / "new").write_bytes(b"after the loss")
    m.wait("new")
    done = run("wait", "--timeout", "60s", m.path, check=False, timeout=90)
    assert done.returncode == 1, done.stderr
    assert sorted(store.list()) == ["edited", "new", "there"] and store.get("edited") == b"of the store" * 100
    for name in [*files, "edited"]:
        os.unlink(m.path / name)
    m.wait()
    assert m.status()["quarantined"] == 0 and sorted(store.list()) == ["new", "there"]


def test_cache_that_comes_back_loses_nothing(make_mount, store, journal, base):
    m = make_mount(journal_dir=journal, fault=NO_WRITES)
    files = write_files(m, 3)
    m.kill9()
    m.cache.rename(base / "away")
    refused(m, "'d/f00', 'd/f01', 'd/f02'", fault=None)  # in its place there is a new folder now, with the journal
    shutil.rmtree(m.cache)
    (base / "away").rename(m.cache)
    m.mount(fault=None)
    m.wait()
    assert all(store.get(name) == data for name, data in files.items())


def test_loss_is_noticed_with_the_database_in_the_cache_too(make_mount, store):
    m = make_mount(fault=NO_WRITES)
    write_files(m, 1)
    m.umount()
    lose(m, "data")
    refused(m, "1 unpublished file was on it: 'd/f00'", fault=None)
    m.mount(accept_loss=True, fault=None)
    assert m.info("d/f00")["state"] == "quarantined" and "d/f00" not in store.list()


def test_damaged_database_elsewhere_is_repaired_by_fsck(make_mount, store, journal):
    m = make_mount(journal_dir=journal, fault=NO_WRITES)
    files = write_files(m, 3)
    m.umount()
    to = database(m).readlink()
    assert "not yet published" in run("fsck", m.cache, env=m.env).stdout
    (to / "CURRENT").write_text("nothing\n")
    refused(m, "fsck --repair", fault=None)
    assert run("fsck", m.cache, check=False, env=m.env).returncode == 1
    run("fsck", "--repair", m.cache, env=m.env)
    assert database(m).readlink() == to and len(list(journal.glob(f"{to.name}.damaged-*/CURRENT"))) == 1
    run("fsck", m.cache, env=m.env)
    m.mount(fault=None)
    m.wait()
    assert all(store.get(name) == data for name, data in files.items())


def test_journal_whose_disk_is_not_there_is_never_begun_anew(make_mount, store, journal, base):
    m = make_mount(journal_dir=journal, fault=NO_WRITES)
    files = write_files(m, 3)
    m.umount()
    to = database(m).readlink()
    journal.rename(base / "unmounted")
    for extra in ({"journal_dir": None}, {}):
        said = refused(m, to, "mount the disk", fault=None, **extra)
        assert not to.exists()
    done = run("fsck", "--repair", m.cache, check=False, env=m.env)
    assert done.returncode != 0 and "mount the disk" in done.stderr and not to.exists()
    subprocess.run(said.split("`")[1], shell=True, check=True, timeout=30)  # lost for good: as told
    m.mount(fault=None)
    assert "unpublished files found beside their data files=3" in m.log()
    m.wait()
    assert all(store.get(name) == data for name, data in files.items())


def test_database_of_a_used_cache_is_moved_as_told(make_mount, store, journal):
    m = make_mount(fault=NO_WRITES)
    files = write_files(m, 3)
    m.umount()
    said = refused(m, database(m), journal, journal_dir=journal, fault=None)
    subprocess.run(said.split("`")[1], shell=True, check=True, timeout=30)
    m.mount(journal_dir=journal, fault=None)
    m.wait()
    assert all(store.get(name) == data for name, data in files.items())
    m.umount()
    refused(m, journal, journal.parent / "third", journal_dir=journal.parent / "third")
    m.mount(journal_dir=journal)


def test_journal_is_refused_where_it_would_be_lost_or_seen(make_mount, store, base):
    m = make_mount(start=False)
    places = {m.path / "j": "lies in the mount point", m.cache: "lies in the cache folder", m.cache / "sub/j": "lies in the cache folder"}
    if store.kind == "file":
        places[store.root / "j"] = "lies in the source"
    for place, words in places.items():
        refused(m, place, words, journal_dir=place)
        assert not database(m).is_symlink()
    m.mount()
    assert database(m).is_dir()
