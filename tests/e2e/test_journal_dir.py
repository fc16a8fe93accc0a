"""--journal-dir: the database on another disk than the cache."""
import os
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
