"""Other tools on the same bucket: what they wrote shows here, what we wrote reads there, modes and times included."""
import os
import shutil
import stat
import subprocess
import time

import pytest
from mounts import MIB, eventually, sh

pytestmark = pytest.mark.ceph


@pytest.fixture
def rclone(store):
    env = dict(os.environ, RCLONE_CONFIG_L_TYPE="s3", RCLONE_CONFIG_L_PROVIDER="Ceph", RCLONE_CONFIG_L_ENV_AUTH="true",
               RCLONE_CONFIG_L_ENDPOINT=store.endpoint, RCLONE_CONFIG="/dev/null")
    env.pop("AWS_CA_BUNDLE", None)  # rclone's own transport refuses it
    return lambda args: sh(f"rclone --metadata {args}".replace("LAKE", f"l:{store.bucket}"), env=env).stdout


@pytest.fixture
def s3fs(store, base):
    if not shutil.which("s3fs"):
        pytest.skip("s3fs is not there")
    where = base / "s3fs"
    where.mkdir()
    env = dict(os.environ, AWSACCESSKEYID=os.environ["AWS_ACCESS_KEY_ID"], AWSSECRETACCESSKEY=os.environ["AWS_SECRET_ACCESS_KEY"])
    subprocess.run(["s3fs", store.bucket, where, "-o", f"url={store.endpoint},use_path_request_style"], env=env, check=True, timeout=60,
                   stdin=subprocess.DEVNULL)
    yield where
    subprocess.run(["umount", "-l", where], timeout=20, check=False)


def test_rclone_reads_ours_with_mode_and_time(mount, rclone, base):
    (mount.path / "f").write_bytes(b"by sluice")
    os.chmod(mount.path / "f", 0o640)
    os.utime(mount.path / "f", (1234567890, 1234567890))
    mount.wait()
    rclone(f"copy LAKE/f {base}/out")
    assert (base / "out/f").read_bytes() == b"by sluice"
    st = os.stat(base / "out/f")
    assert stat.S_IMODE(st.st_mode) == 0o640
    assert int(st.st_mtime) == 1234567890


def test_rclone_uploads_show_with_mode_and_time(make_mount, rclone, base):
    m = make_mount(posix_meta="on")
    (base / "src").mkdir()
    (base / "src/f").write_bytes(b"by rclone")
    os.chmod(base / "src/f", 0o604)
    os.utime(base / "src/f", (1234567890, 1234567890))
    rclone(f"copy {base}/src LAKE/up")
    assert eventually(lambda: (m.path / "up/f").exists(), 10)
    assert (m.path / "up/f").read_bytes() == b"by rclone"
    st = os.stat(m.path / "up/f")
    assert stat.S_IMODE(st.st_mode) == 0o604
    assert int(st.st_mtime) == 1234567890


def test_s3fs_reads_ours_and_we_read_theirs(make_mount, s3fs, store):
    m = make_mount(posix_meta="on")
    (m.path / "ours").write_bytes(b"by sluice")
    os.chmod(m.path / "ours", 0o640)
    m.wait()
    assert (s3fs / "ours").read_bytes() == b"by sluice"
    assert stat.S_IMODE(os.stat(s3fs / "ours").st_mode) == 0o640
    (s3fs / "theirs").write_bytes(b"by s3fs")
    os.chmod(s3fs / "theirs", 0o600)
    (s3fs / "dir").mkdir()
    (s3fs / "dir/f").write_bytes(b"deep")
    (s3fs / "link").symlink_to("dir/f")
    time.sleep(1.5)
    assert eventually(lambda: (m.path / "theirs").exists() and (m.path / "dir/f").exists(), 10)
    assert (m.path / "theirs").read_bytes() == b"by s3fs"
    assert stat.S_IMODE(os.stat(m.path / "theirs").st_mode) == 0o600
    assert (m.path / "dir/f").read_bytes() == b"deep"
    assert os.readlink(m.path / "link") == "dir/f"
    assert (m.path / "link").read_bytes() == b"deep"


def test_objects_are_plain(mount, store):
    (mount.path / "d").mkdir()
    (mount.path / "d/f").write_bytes(b"plain")
    mount.wait()
    reply = store.client.get_object(Bucket=store.bucket, Key="d/f")
    assert reply["Body"].read() == b"plain"
    assert reply["ContentLength"] == 5
    assert store.list() == {"d/f": 5}


def test_symlinks_come_back_after_a_fresh_cache(make_mount, store):
    a = make_mount("a")
    (a.path / "f").write_bytes(b"x")
    os.symlink("f", a.path / "l")
    a.wait()
    b = make_mount("b")
    assert os.readlink(b.path / "l") == "f"
    assert (b.path / "l").read_bytes() == b"x"


def test_prefix_is_a_root_of_its_own(make_mount, store):
    store.put("p/in", b"1")
    store.put("outside", b"2")
    m = make_mount(source=f"{store.source}/p")
    assert os.listdir(m.path) == ["in"]
    (m.path / "new").write_bytes(b"3")
    m.wait()
    assert store.get("p/new") == b"3"
    assert store.get("outside") == b"2"


def test_two_mounts_of_one_bucket_see_each_other(make_mount, store):
    a, b = make_mount("a"), make_mount("b")
    data = os.urandom(10 * MIB)
    (a.path / "f").write_bytes(data)
    a.wait()
    assert eventually(lambda: (b.path / "f").exists(), 10)
    assert (b.path / "f").read_bytes() == data
    (b.path / "f").write_bytes(b"changed by b")
    b.wait()
    assert eventually(lambda: (a.path / "f").read_bytes() == b"changed by b", 10)


def test_link_with_another_target_shows_on_the_other_mount(make_mount):
    a, b = make_mount("a"), make_mount("b")

    def point(mount, target):
        os.symlink(target, mount.path / "new")
        os.rename(mount.path / "new", mount.path / "latest")
        mount.wait()

    for step in range(1, 4):
        point(a, f"step_{step}")
        assert eventually(lambda: os.path.islink(b.path / "latest") and os.readlink(b.path / "latest") == f"step_{step}", 20)
    point(b, "step_4")
    assert eventually(lambda: os.readlink(a.path / "latest") == "step_4", 20)


def test_empty_objects_of_another_mount_are_not_overwritten_or_removed(make_mount, store):
    a = make_mount("a")
    for name in ("removed", "replaced"):
        os.symlink("first", a.path / name)
    a.wait()
    b = make_mount("b", metadata_ttl="1h")
    assert os.readlink(b.path / "removed") == os.readlink(b.path / "replaced") == "first"
    for name in ("removed", "replaced"):
        os.symlink("second", a.path / "new")
        os.rename(a.path / "new", a.path / name)
    a.wait()
    os.unlink(b.path / "removed")
    os.symlink("third", b.path / "new")
    os.rename(b.path / "new", b.path / "replaced")
    assert eventually(lambda: b.status()["conflicts"] == 1)
    c = make_mount("c")
    assert os.readlink(c.path / "removed") == os.readlink(c.path / "replaced") == "second"
