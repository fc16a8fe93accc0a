"""Bad usage ends with exit code 2 and one clear line; secrets stay out of every output; the other verbs do what they say."""
import fcntl
import hashlib
import json
import os
import pathlib
import subprocess
import time

import pytest
from mounts import MIB, SLUICE, as_nobody, eventually, is_gone, run


def refused(args, *words, code=2, env=None):
    done = run(*args, check=False, env=env, timeout=60)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert 1 <= len(lines) <= 3, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def test_what_the_daemon_opens_is_not_in_its_mount(make_mount, base):
    m = make_mount(start=False)
    for option in ("cache_dir", "log_file"):
        refused(m.arguments({option: m.path / "below/x"}), "lies in the mount point")
    if not m.store.endpoint:
        m.source = f"file://{base}"
        refused(m.arguments(), "lies in the source")


def test_unknown_option(make_mount):
    m = make_mount(start=False, no_such_option="1")
    refused(m.arguments(), "no-such-option", env=m.env)


@pytest.mark.parametrize("option,value", [("cache_size", "12Q"), ("cache_size", "-5"), ("op_timeout", "soon"), ("close", "maybe"),
                                          ("part_size", "1"), ("max_uploads", "0"), ("umask", "9")])
def test_bad_values_name_the_option(make_mount, option, value):
    m = make_mount(start=False, **{option: value})
    refused(m.arguments(), option.replace("_", "-"), env=m.env)


def test_missing_mount_point(make_mount, base):
    m = make_mount(start=False)
    m.path = base / "not-there"
    refused(m.arguments(), "not-there", env=m.env)


def test_mount_point_that_is_a_file(make_mount, base):
    m = make_mount(start=False)
    m.path = base / "file"
    m.path.write_text("x")
    refused(m.arguments(), "file", env=m.env)


def test_mount_point_that_is_not_empty(make_mount):
    m = make_mount(start=False)
    (m.path / "something").write_text("x")
    refused(m.arguments(), str(m.path), env=m.env)
    assert (m.path / "something").read_text() == "x"


def test_mounting_twice(mount):
    refused(mount.arguments({"cache_dir": mount.base / "other"}), str(mount.path), env=mount.env)
    (mount.path / "f").write_text("still served")
    assert (mount.path / "f").read_text() == "still served"


@pytest.mark.parametrize("args", [[], ["no-such-verb"], ["mount"], ["umount"], ["wait"], ["mount", "x://y", "/tmp"],
                                  ["warmup", "--parallel", "65", "/tmp"], ["wait", "--timeout", "0", "/tmp"],
                                  ["wait", "--timeout=0s", "/tmp"], ["umount", "--drain=0", "/tmp"]])
def test_wrong_command_lines(args):
    done = run(*args, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() or done.stdout.strip()


def test_credentials_in_the_source_are_refused(make_mount):
    m = make_mount(start=False, source="s3://AKIAEXAMPLE:verysecretkey@bucket")
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode == 2
    assert "verysecretkey" not in done.stdout + done.stderr


def test_missing_file_store_directory(make_mount, base):
    m = make_mount(start=False, source=f"file://{base}/none")
    done = run(*m.arguments({"endpoint_url": None}), check=False, env=m.env)
    assert done.returncode in (1, 2) and not m.is_mounted()
    assert "none" in done.stderr


def test_umount_of_what_is_not_mounted(base):
    done = run("umount", base, check=False)
    assert done.returncode in (1, 2) and done.stderr.strip()


@pytest.mark.parametrize("verb", ["status", "info", "wait", "warmup", "pin", "evict"])
def test_verbs_outside_a_mount_say_so(base, verb):
    done = run(verb, base, check=False)
    assert done.returncode in (1, 2)
    assert 1 <= len(done.stderr.strip().splitlines()) <= 3


def test_help_and_version():
    for args in (["--help"], ["mount", "--help"], ["version"]):
        done = run(*args)
        assert done.stdout.strip()
    assert "--cache-dir" in run("mount", "--help").stdout


def test_warmup_pin_and_evict(mount, store):
    for i in range(20):
        store.put(f"d/f{i}", os.urandom(MIB))
    run("warmup", mount.path / "d", timeout=120)
    before = mount.status()["downloaded_bytes"]
    assert before >= 20 * MIB
    for i in range(20):
        (mount.path / f"d/f{i}").read_bytes()
    assert mount.status()["downloaded_bytes"] == before
    run("pin", mount.path / "d/f0")
    assert mount.info("d/f0")["pinned"]
    run("evict", mount.path / "d", check=False)  # the pinned file stays and may be told as left out
    assert mount.info("d/f0")["cached_bytes"] == MIB
    assert mount.info("d/f1")["cached_bytes"] == 0
    run("unpin", mount.path / "d/f0")
    run("evict", mount.path / "d/f0")
    assert mount.info("d/f0")["cached_bytes"] == 0
    assert (mount.path / "d/f0").read_bytes() == store.get("d/f0")


def test_a_rule_pins_the_newest_of_what_others_write_too(make_mount, store):
    m = make_mount(metadata_ttl="0s")
    store.put("ckpt/final", b"0")
    store.put("ckpt/step1.pt", b"1")
    run("pin", m.path / "ckpt/final")
    run("pin", "--latest", 1, m.path / "ckpt/*.pt")
    assert m.info("ckpt/step1.pt")["pinned"]
    time.sleep(1.1)  # stores know seconds
    store.put("ckpt/step2.pt", b"22")
    os.listdir(m.path / "ckpt")
    assert eventually(lambda: m.info("ckpt/step2.pt")["pinned"] and m.info("ckpt/step2.pt")["cached_bytes"] == 2)
    assert eventually(lambda: not m.info("ckpt/step1.pt")["pinned"])
    other = run("unpin", "--latest", 2, m.path / "ckpt/*.pt", check=False)
    assert other.returncode == 1 and "no rule that keeps 2 names" in other.stdout + other.stderr
    run("unpin", "--latest", 1, m.path / "ckpt/*.pt")
    assert not m.info("ckpt/step2.pt")["pinned"]
    assert m.info("ckpt/final")["pinned"]


def test_a_pattern_that_the_shell_expanded_pins_nothing(mount, store):
    for i in range(3):
        store.put(f"ckpt/step{i}.pt", b"x" * 1000)
    names = [mount.path / f"ckpt/step{i}.pt" for i in range(3)]
    refused(["pin", "--latest", 1, *names], "quote it", code=2)
    refused(["pin", "--latest", 1, mount.path / "ckpt/*.pt", names[0]], "quote it", code=2)
    assert not any(mount.info(f"ckpt/step{i}.pt")["pinned"] for i in range(3))
    run("pin", "--latest", 1, mount.path / "ckpt/*.pt", mount.path / "ckpt/*.txt")
    assert sum(mount.info(f"ckpt/step{i}.pt")["pinned"] for i in range(3)) == 1


def test_dirty_files_are_never_evicted(make_mount, store):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"only copy")
    run("evict", m.path / "f", check=False)
    assert (m.path / "f").read_bytes() == b"only copy"
    m.remount(fault=None)
    m.wait()
    assert store.get("f") == b"only copy"


def test_read_only_mount_refuses_changes(make_mount, store):
    store.put("f", b"x")
    m = make_mount(read_only=True)
    assert (m.path / "f").read_bytes() == b"x"
    for change in (lambda: (m.path / "g").write_text("y"), lambda: os.unlink(m.path / "f"), lambda: os.mkdir(m.path / "d")):
        with pytest.raises(OSError) as e:
            change()
        assert e.value.errno == 30
    assert store.list() == {"f": 1}


@pytest.mark.ceph
def test_secret_appears_nowhere(make_mount, store):
    m = make_mount(log_level="debug", http="127.0.0.1:18432")
    secret = m.env["AWS_SECRET_ACCESS_KEY"]
    (m.path / "f").write_bytes(os.urandom(10 * MIB))
    m.wait()
    (m.path / "none").exists()
    outputs = {"log": m.log(), "status": run("status", "--json", m.path).stdout, "info": run("info", "--json", m.path / "f").stdout}
    outputs["cmdline"] = "".join(pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in m.pids())
    outputs["metrics"] = subprocess.run(["curl", "-s", "http://127.0.0.1:18432/metrics"], capture_output=True, text=True, timeout=20,
                                        check=False).stdout
    assert "sluice" in outputs["metrics"]
    m.umount()
    outputs["log at the end"] = m.log()
    for name, text in outputs.items():
        assert secret not in text, name
        assert "Authorization: AWS4" not in text, name
    for path in m.cache.rglob("*"):
        if path.is_file() and path.stat().st_size < 8 * MIB:
            assert secret.encode() not in path.read_bytes(), path


def test_unmounted_mounts_leave_no_process(make_mount):
    m = make_mount()
    pids = m.pids()
    m.umount()
    assert all(map(is_gone, pids))


def test_options_may_come_by_dash_o(make_mount):
    m = make_mount(start=False)
    run("mount", m.source, m.path, "-o", f"cache-dir={m.cache},cache-size=64M" +
        (f",endpoint-url={m.store.endpoint}" if m.store.endpoint else ""), env=m.env)
    assert m.is_mounted()
    assert m.status()["cache_limit_bytes"] == 64 * MIB


def test_names_that_cannot_be_asked_for_do_not_keep_the_others_waiting(mount, store, base):
    for name in ("a", "b", "c"):
        store.put(f"d/{name}", b"12345")
    names = [os.fsencode(mount.path / "d/a"), b"/etc/hosts", os.fsencode(mount.path / "d/b"), os.fsencode(mount.path) + b"/d/\xff",
             os.fsencode(mount.path / "d/c")]
    (base / "list").write_bytes(b"\n".join(names) + b"\n")
    done = run("warmup", "-f", base / "list", check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "'/etc/hosts' is not in a sluice mount" in done.stderr
    assert "not valid UTF-8" in done.stderr
    assert [mount.info(f"d/{name}")["cached_bytes"] for name in ("a", "b", "c")] == [5, 5, 5]


def test_paths_in_two_mounts_are_wrong_usage(make_mount, store):
    store.put("f", b"12345")
    one, two = make_mount("one"), make_mount("two")
    done = run("warmup", one.path / "f", two.path / "f", check=False)
    assert done.returncode == 2 and "one mount at a time" in done.stderr
    assert one.info("f")["cached_bytes"] == 5 and two.info("f")["cached_bytes"] == 0


def test_links_inside_the_mount_are_followed(mount, store):
    store.put("step_1/a", b"12345")
    os.symlink("step_1", mount.path / "latest")
    os.symlink("/etc", mount.path / "outside")
    run("warmup", mount.path / "latest")
    assert mount.info("step_1/a")["cached_bytes"] == 5
    mount.wait("latest")
    refused(["wait", mount.path / "outside"], "leads out of the mount", code=1)


# ---- umount ----


def socket_of(m):
    name = hashlib.sha256(os.fsencode(m.path)).hexdigest()[:16]
    return pathlib.Path(f"/run/sluice/{name}.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="finds the socket as root")
def test_umount_takes_nobody_for_dead_who_is_not(mount):
    where = socket_of(mount)
    away = where.with_suffix(".away")
    where.rename(away)
    try:
        for options in ([], ["--drain"]):
            refused(["umount", *options, mount.path], "does not listen here", code=1)
        (mount.path / "f").write_text("still served")
    finally:
        away.rename(where)
    mount.umount()


def test_umount_of_a_dead_mount_drains_nothing(make_mount):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"only copy")
    m.kill()
    assert eventually(lambda: "is not running" in run("status", m.path, check=False).stderr)
    refused(["umount", "--drain", m.path], "nothing is published", code=1)
    assert m.is_mounted()
    m.umount()
    m.mount(fault=None)
    m.wait()
    assert m.store.get("f") == b"only copy"


def test_a_mount_takes_the_place_of_a_dead_one(make_mount):
    m = make_mount(fault="op=put,action=error:-EIO")
    (m.path / "f").write_bytes(b"only copy")
    m.kill()
    done = run(*m.arguments({"fault": None}), env=m.env)
    assert "the dead mount is cleared" in done.stderr
    m.wait()
    assert (m.path / "f").read_bytes() == m.store.get("f") == b"only copy"
    m.umount()
    assert not m.is_mounted()  # nor one below it


def test_umount_of_a_mount_in_use_is_refused(mount):
    with open(mount.path / "f", "w") as f:
        refused(["umount", mount.path], "is in use", code=1)
        f.write("still served")
    assert (mount.path / "f").read_text() == "still served"


AS_NOBODY = """
cd /
"$2" mount "file://$1/lake" "$1/mnt" --cache-dir "$1/cache" --log-file "$1/log" || exit 70
exec 9>"$1/mnt/f"
"$2" umount "$1/mnt"; echo "in use: $?"
echo "still served" >&9
exec 9>&-
cat "$1/mnt/f"
"$2" umount "$1/mnt"; echo "free: $?"
grep -c " $1/mnt " /proc/self/mountinfo
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_umount_by_a_user_of_a_mount_in_use_is_refused(base):
    """A user's daemon may not unmount; libfuse's helper may, and must not do it lazily."""
    done = as_nobody(base, AS_NOBODY)
    if done.returncode == 77:
        pytest.skip("no device can be made here")
    assert done.stdout.splitlines() == ["in use: 1", "still served", "free: 0", "0"], done.stdout + done.stderr
    assert "is in use" in done.stderr


@pytest.mark.parametrize("name", ["a,b", "end\\", "a\\101", "a\\,suid\\\\"])
def test_name_of_the_source_takes_no_mount_option_away(make_mount, store, name):
    store.put(f"{name}/f", b"1234")
    m = make_mount(source=f"{store.source}/{name}", noexec=True)
    line = next(line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == str(m.path))
    assert {"nosuid", "nodev", "noexec"} <= set(line[5].split(","))
    assert line[-2].replace("\\134", "\\") == m.status()["source"]
    assert (m.path / "f").read_bytes() == b"1234"


def test_noexec_starts_no_program(make_mount):
    m = make_mount(noexec=True)
    (m.path / "run").write_text("#!/bin/sh\n")
    (m.path / "run").chmod(0o755)
    with pytest.raises(PermissionError):
        subprocess.run([m.path / "run"], check=False, timeout=20)
    m.remount(noexec=None)
    subprocess.run([m.path / "run"], check=True, timeout=20)


# ---- from where a mount is started, and seen ----


def test_a_lock_of_who_mounts_is_not_held_by_the_mount(make_mount, base):
    m = make_mount(start=False)
    with open(base / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run(*m.arguments(), env=m.env, pass_fds=(held.fileno(),))
    with open(base / "lock") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (m.path / "f").write_text("served")


@pytest.fixture
def bound(mount, store, base):
    """A folder of the lake at a second place."""
    store.put("d/f", b"12345")
    assert os.listdir(mount.path / "d") == ["f"]
    second = base / "second"
    second.mkdir()
    done = subprocess.run(["mount", "--bind", mount.path / "d", second], timeout=20, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no bind mount can be made here: {done.stderr}")
    yield second
    subprocess.run(["umount", "-l", second], timeout=20, check=False)


def test_a_bind_mount_is_seen_through(mount, bound):
    run("warmup", bound / "f")
    by_bind = json.loads(run("info", "--json", bound / "f").stdout)
    assert by_bind["path"] == "d/f" and by_bind["cached_bytes"] == 5
    assert json.loads(run("status", "--json", bound).stdout)["mountpoint"] == str(mount.path)
    (bound / "g").write_bytes(b"1")
    run("wait", "--timeout", "60s", bound)
    assert mount.store.get("d/g") == b"1"
    listed = [json.loads(line)["mountpoint"] for line in run("status", "--json", check=False).stdout.splitlines()]
    assert listed.count(str(mount.path)) == 1 and str(bound) not in listed
    refused(["umount", bound], str(mount.path))
    assert (bound / "f").read_bytes() == b"12345"


def test_umount_leaves_who_uses_a_bind_mount_alone(mount, bound):
    """The kernel calls a mount unused that is used at another place."""
    with open(bound / "g", "wb") as f:
        f.write(b"before")
        f.flush()
        refused(["umount", mount.path], "is in use", "d/g", code=1)
        mount.kill_worker()  # the next one knows what is open, too
        refused(["umount", mount.path], "is in use", code=1)
        f.write(b" and after")
    mount.wait()
    assert mount.store.get("d/g") == b"before and after"
    listing = os.open(bound, os.O_RDONLY | os.O_DIRECTORY)
    refused(["umount", mount.path], "is in use", code=1)
    os.close(listing)
    mount.umount()


def test_what_is_not_utf8_is_not_left_out(mount, base):
    """What cannot be asked for is said, and nothing is done without it."""
    odd, other = b"priv\xe9", base / "other"
    other.mkdir()
    done = [subprocess.run([SLUICE, *args], capture_output=True, timeout=60, check=False) for args in (
        ["link", "add", "--exclude", odd + b"/*", f"file://{other}", mount.path / "l"],
        ["link", "add", b"file://" + os.fsencode(other) + odd, mount.path / "l"],
        ["link", "add", "--ca-bundle", odd, f"file://{other}", mount.path / "l"],
        ["link", "set", "--include", odd, mount.path / "l"],
        ["link", "set", "--unset", odd, mount.path / "l"],
        ["link", "list", os.fsencode(mount.path) + b"/" + odd],
        ["conflicts", "show", os.fsencode(mount.path) + b"/" + odd])]
    assert [d.returncode for d in done] == [2] * 5 + [1] * 2, done
    assert [b"UTF-8" in d.stderr or b"names no option" in d.stderr for d in done] == [True] * 7, done
    assert "no links" in run("link", "list", mount.path).stdout
