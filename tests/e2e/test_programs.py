"""Programs that people run on a lake: sqlite, git, tar, fio, cp."""
import errno
import os

import pytest
from mounts import sh


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_database_lives_on_the_mount(mount, store, base, journal):
    db = mount.path / "app.db"
    sh(f"sqlite3 {db} 'pragma journal_mode={journal}; create table t(a integer primary key, b text);'")
    for i in range(5):
        sh(f"sqlite3 {db} \"with recursive c(x) as (select 1 union all select x+1 from c where x<200) "
           f"insert into t(b) select 'row {i} ' || x from c\"")
    assert sh(f"sqlite3 {db} 'pragma integrity_check; select count(*) from t'").stdout.split() == ["ok", "1000"]
    mount.wait()
    (base / "upstream.db").write_bytes(store.get("app.db"))
    assert sh(f"sqlite3 {base}/upstream.db 'select count(*) from t'").stdout.strip() == "1000"


def test_git_clone_on_the_mount_is_sound(mount, base):
    sh(f"git init -q {base}/src && cd {base}/src && git config user.email a@b && git config user.name n && "
       "for i in $(seq 1 60); do mkdir -p d$i; seq $i 500 > d$i/f; done && git add -A && git commit -qm one && "
       "git rm -q d1/f && git commit -qm two")
    sh(f"git clone -q {base}/src {mount.path}/clone && cd {mount.path}/clone && git fsck --strict && "
       "test -z \"$(git status --porcelain)\" && git checkout -q HEAD~1 && git gc -q && git fsck")


def test_tar_out_and_compare(mount, store, base):
    sh(f"mkdir -p {base}/tree/a/b {base}/tree/empty && cp -r /usr/include/linux {base}/tree/a/b && ln -s b {base}/tree/a/link && "
       f"tar -C {base} -cf {base}/t.tar tree && tar -C {mount.path} -xf {base}/t.tar && "
       f"diff -r --no-dereference {base}/tree {mount.path}/tree")
    mount.wait()
    mount.remount()
    sh(f"diff -r --no-dereference {base}/tree {mount.path}/tree")
    for key in list(store.list("tree/a/b/linux/"))[:50]:
        assert store.get(key) == (base / key).read_bytes()


@pytest.mark.slow
def test_fio_verifies_what_it_wrote(mount):
    sh(f"cd {mount.path} && fio --name=v --rw=randwrite --bs=16k --size=32m --verify=crc32c --do_verify=1 --numjobs=2 "
       "--ioengine=psync --minimal --fallocate=none", timeout=200)


def test_rsync_like_copy_keeps_times_and_modes(mount, base):
    sh(f"mkdir {base}/s && echo x > {base}/s/f && chmod 640 {base}/s/f && touch -d @1234567890 {base}/s/f && "
       f"cp -a {base}/s {mount.path}/copy")
    mount.wait()
    mount.remount()
    st = os.stat(mount.path / "copy/f")
    assert int(st.st_mtime) == 1234567890 and st.st_mode & 0o777 == 0o640


def test_ls_asks_for_no_label_and_no_acl_of_each_name(mount, store):
    """A file system that has none says so, once: `ls -l` asks the daemon for nothing that the kernel knows."""
    for i in range(100):
        store.put(f"d/{i}", b"x")
    for name in ("security.none", "system.posix_acl_access"):
        with pytest.raises(OSError) as e:
            os.getxattr(mount.path / "d/1", name)
        assert e.value.errno == errno.EOPNOTSUPP, name
    sh(f"ls -l {mount.path}/d")
    before = mount.status()["fuse_requests"]
    assert len(sh(f"ls -l {mount.path}/d").stdout.splitlines()) == 101
    assert mount.status()["fuse_requests"] - before < 20
