"""What must never happen: secrets where others can read them, a cache others can get into, rights that a bucket gives, a binary without its armour."""
import errno
import http.server
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading

import lake
import pytest
from identity import Identity
from mounts import MIB, ROOT, SLUICE, Mount, as_nobody, eventually, run, sh

CANARY = "cAnArY0secretDoNotPrintMe0123456789abcdef"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def keys_file(path, mode, secret=CANARY):
    path.write_text(f"[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {secret}\n")
    path.chmod(mode)
    return path


def environ(pid):
    return pathlib.Path(f"/proc/{pid}/environ").read_bytes()


# ---- keys ----


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o444])
def test_keys_in_a_file_open_to_others_are_not_used(make_mount, base, mode):
    m = make_mount(start=False, source="s3://bucket", endpoint_url="http://127.0.0.1:9")
    env = {k: "" for k in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE")}
    env.update(AWS_SHARED_CREDENTIALS_FILE=str(keys_file(base / "keys", mode)), AWS_EC2_METADATA_DISABLED="true")
    done = run(*m.arguments(), check=False, env=env)
    assert done.returncode != 0 and not m.is_mounted()
    assert "is open to other users: chmod 600" in done.stderr
    assert CANARY not in done.stdout + done.stderr


@ROOT_ONLY
def test_keys_in_a_file_of_somebody_else_are_not_used(make_mount, base):
    m = make_mount(start=False, source="s3://bucket", endpoint_url="http://127.0.0.1:9")
    path = keys_file(base / "keys", 0o600)
    os.chown(path, 12345, 12345)
    env = {k: "" for k in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
    env.update(AWS_SHARED_CREDENTIALS_FILE=str(path), AWS_EC2_METADATA_DISABLED="true")
    done = run(*m.arguments(), check=False, env=env)
    assert done.returncode != 0 and "open to other users" in done.stderr and not m.is_mounted()


def found_in_memory(pid, secret):
    """Where it stands: (in memory that is locked and left out of dumps, elsewhere), each the names of mappings."""
    kept, elsewhere, where = [], [], None
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
            mapping = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
            where = mapping or where
            if not line.startswith("VmFlags:") or where[3][0] != "r" or where[4] in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
                continue
            first, end = int(where[1], 16), int(where[2], 16)
            memory.seek(first)
            try:
                data = memory.read(end - first)
            except OSError:
                continue  # of a file that is shorter
            if secret in data:
                (kept if {"dd", "lo"} <= set(line.split()[1:]) else elsewhere).append(f"{where[4] or 'anonymous'} at {first:x}")
    return kept, elsewhere


@ROOT_ONLY
@pytest.mark.slow  # and a build with sanitizers locks no memory and keeps what was freed
@pytest.mark.parametrize("where", ["environment", "file"])
def test_the_secret_key_is_in_no_memory_that_a_dump_would_hold(make_mount, base, where):
    made = lake.Lake()
    env = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": CANARY}
    if where == "file":
        env = {**dict.fromkeys(env, ""), "AWS_SHARED_CREDENTIALS_FILE": str(keys_file(base / "keys", 0o600))}
    try:
        made.put("f", b"1234")
        m = make_mount(start=False, source=made.source, endpoint_url=made.endpoint)
        m.store = made
        m.env = {**made.env(), **env}
        m.mount()
        assert (m.path / "f").read_bytes() == b"1234"
        (m.path / "g").write_bytes(b"5678")
        m.wait()
        kept, elsewhere = found_in_memory(m.status()["pid"], CANARY.encode())
        assert kept and not elsewhere, (kept, elsewhere)
        m.umount()
    finally:
        made.remove()


@pytest.mark.parametrize("option", ["--aws-secret-access-key=" + CANARY, "--secret-key=" + CANARY, "-oaws_session_token=" + CANARY, "-opassword=" + CANARY])
def test_keys_are_no_options(make_mount, option):
    m = make_mount(start=False)
    done = run(*m.arguments(), option, check=False, env=m.env)
    assert done.returncode == 2 and not m.is_mounted()
    assert CANARY not in done.stdout + done.stderr + m.log()


def test_the_daemon_shows_no_secret(make_mount, store):
    """Neither its command line nor its environment nor the mount table, its log, its answers or its cache; whatever it logs."""
    m = make_mount(start=False, log_level="debug", http="127.0.0.1:18433")
    secrets = [CANARY]
    if store.kind == "ceph":
        secrets = [m.env["AWS_SECRET_ACCESS_KEY"]]
    else:
        m.env.update(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY=CANARY, AWS_SESSION_TOKEN=CANARY)
    done = run(*m.arguments(), env=m.env)
    (m.path / "f").write_bytes(os.urandom(6 * MIB))
    m.wait()
    (m.path / "none").exists()
    pid = m.status()["pid"]
    seen = {"mount": done.stdout + done.stderr, "status": run("status", "--json", m.path).stdout, "config": run("status", "--config", m.path).stdout,
            "info": run("info", "--json", m.path / "f").stdout, "command line": pathlib.Path(f"/proc/{pid}/cmdline").read_text(),
            "environment": environ(pid).decode(errors="replace"), "mount table": pathlib.Path("/proc/self/mountinfo").read_text(),
            "processes": sh("ps -eo args").stdout, "metrics": sh("curl -s http://127.0.0.1:18433/metrics").stdout}
    m.umount()
    seen["log"] = m.log()
    assert "AWS_SECRET_ACCESS_KEY=" in seen["environment"] and "sluice" in seen["metrics"] and seen["log"]
    for secret in secrets:
        for where, text in seen.items():
            assert secret not in text, where
            assert not re.search(r"Signature=[0-9a-f]{64}|X-Amz-Security-Token: \S", text), where
        for path in m.cache.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("where", ["variable", "keys file", "events secret", "signature"])
def test_a_secret_in_the_log_of_any_mount_fails_its_test(store, base, where):
    m = Mount(store, base / "m")
    line = f"info http[1]: sent key='a' token={CANARY}"
    if where == "variable":
        m.env["AWS_SESSION_TOKEN"] = CANARY
    elif where == "keys file":
        m.env["AWS_SHARED_CREDENTIALS_FILE"] = str(keys_file(base / "keys", 0o600))
    elif where == "events secret":
        m.options["events_secret_file"] = base / "secret"
        m.options["events_secret_file"].write_text(CANARY + "\n")
    else:
        line = "debug http[1]: Authorization: AWS4-HMAC-SHA256 Credential=a, Signature=" + "0123456789abcdef" * 4
    m.log_path.write_text("info mount[1]: mounted\n")
    m.finish()
    m.log_path.write_text(line + "\n")
    with pytest.raises(AssertionError, match="the log holds"):
        m.finish()


class EmptyBucket(http.server.BaseHTTPRequestHandler):
    """Whatever is asked for. Keeps what requests are signed with."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.signed.append(self.headers.get("Authorization", ""))
        body = b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def empty_bucket():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyBucket) as server:
        server.daemon_threads, server.signed = True, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@ROOT_ONLY
@pytest.mark.slow  # as above
def test_keys_of_the_environment_stand_in_locked_memory_only(make_mount, empty_bucket):
    """Of all processes of a mount, at its start and after a worker's death, which the next one gets them after."""
    endpoint = f"http://127.0.0.1:{empty_bucket.server_address[1]}"
    m = make_mount(start=False, source="s3://bucket", endpoint_url=endpoint)
    m.env.update(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY=CANARY, AWS_REGION="r-1", AWS_CONTAINER_AUTHORIZATION_TOKEN=CANARY,
                 AWS_SESSION_TOKEN="", AWS_CONFIG_FILE="/none", AWS_SHARED_CREDENTIALS_FILE="/none")
    m.mount()
    supervisor, worker = m.status()["supervisor_pid"], m.status()["pid"]
    for _ in range(2):
        seen = len(empty_bucket.signed)
        assert eventually(lambda: os.listdir(m.path) == [] and len(empty_bucket.signed) > seen)  # by this worker
        assert all(x.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") for x in empty_bucket.signed)
        children = [int(x) for x in pathlib.Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
        assert len(children) == 2  # the worker and the notifier
        for pid in (supervisor, *children):
            assert b"AWS_SECRET_ACCESS_KEY=" in environ(pid) and CANARY.encode() not in environ(pid)
            kept, elsewhere = found_in_memory(pid, CANARY.encode())
            assert not elsewhere and bool(kept) == (pid in (supervisor, worker)), (pid, worker, kept, elsewhere)
        before = worker
        os.kill(before, signal.SIGKILL)
        worker = eventually(lambda: next((s["pid"] for s in [m.status()] if s["pid"] != before), None))


def test_the_daemon_leaves_no_core_and_no_open_files(mount):
    proc = pathlib.Path(f"/proc/{mount.status()['pid']}")
    assert re.search(r"Max core file size +0 +0 ", (proc / "limits").read_text())
    assert re.search(r"^Umask:\s+0077$", (proc / "status").read_text(), re.M)


AS_NOBODY = """
cd /
"$2" mount "file://$1/lake" "$1/mnt" --cache-dir "$1/cache" --log-file "$1/log" || exit 70
stat -c "runs as %u" "$1/log"
for who in pid supervisor_pid; do
    pid=$("$2" status --json "$1/mnt" | grep -o '"'$who'": *[0-9]*' | grep -o '[0-9]*$')
    stat -c "memory of $who is of %u" "/proc/$pid/environ"
    cat "/proc/$pid/environ"
done
"$2" umount "$1/mnt"
"""


@ROOT_ONLY
def test_the_memory_of_a_users_daemon_is_roots_alone(base):
    """Not dumpable: other programs of the same user neither attach to it nor read what it holds."""
    done = as_nobody(base, AS_NOBODY)
    if done.returncode == 77:
        pytest.skip("no device can be made here")
    assert done.stdout.splitlines() == ["runs as 65534", "memory of pid is of 0", "memory of supervisor_pid is of 0"], done.stdout + done.stderr
    assert done.stderr.count("ermission denied") == 2


# ---- the cache folder ----


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
def test_a_cache_folder_open_to_others_is_refused(make_mount, mode):
    m = make_mount(start=False)
    m.cache.mkdir()
    m.cache.chmod(mode)
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode != 0 and not m.is_mounted()
    assert "chmod 700" in done.stderr
    assert sorted(os.listdir(m.cache)) == []


@ROOT_ONLY
def test_a_cache_folder_of_somebody_else_is_refused(make_mount):
    m = make_mount(start=False)
    m.cache.mkdir(0o700)
    os.chown(m.cache, 12345, 12345)
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode != 0 and "belongs to uid 12345" in done.stderr and not m.is_mounted()


def test_nobody_else_gets_into_the_cache(mount, store):
    store.put("dir/readable", b"x" * 100)
    (mount.path / "dir/readable").read_bytes()
    (mount.path / "mine").write_bytes(b"y" * 100)
    os.chmod(mount.path / "mine", 0o666)
    mount.wait()
    files = 0
    for path in [mount.cache, *mount.cache.rglob("*")]:
        mode = path.lstat().st_mode
        assert not mode & 0o077, (path, oct(mode))
        assert not stat.S_ISLNK(mode) and not mode & 0o7000
        files += stat.S_ISREG(mode)
        assert "readable" not in path.name and "mine" not in path.name
    assert files > 3


def test_links_in_the_cache_folder_are_not_followed(make_mount, base):
    m = make_mount(start=False)
    m.cache.mkdir(0o700)
    precious = base / "precious"
    precious.write_text("not to be touched")
    os.symlink(precious, m.cache / "lock")
    done = run(*m.arguments(), check=False, env=m.env)
    assert done.returncode != 0 and not m.is_mounted()
    assert precious.read_text() == "not to be touched"


def test_links_in_place_of_cache_files_are_not_followed(mount, store, base):
    """Neither read nor written through."""
    data, precious = {name: os.urandom(100000) for name in ("read", "changed")}, base / "precious"
    for name in data:
        store.put(name, data[name])
    for name in data:
        assert (mount.path / name).read_bytes() == data[name]
    mount.umount()
    victims = [path for path in mount.cache.glob("data/*/*") if path.is_file()]
    assert len(victims) == len(data)
    precious.write_bytes(b"not to be seen or touched".ljust(100000, b"!"))
    for path in victims:
        path.unlink()
        path.symlink_to(precious)
    mount.mount()
    with pytest.raises(OSError):
        (mount.path / "read").read_bytes()
    with pytest.raises(OSError):
        with open(mount.path / "changed", "r+b", buffering=0) as f:
            f.write(b"new")
    assert {name: store.get(name) for name in data} == data
    assert precious.read_bytes() == b"not to be seen or touched".ljust(100000, b"!")


def test_a_cache_folder_belongs_to_one_bucket(make_mount, base):
    m = make_mount()
    m.umount()
    other = base / "other"
    other.mkdir()
    n = make_mount("n", source=f"file://{other}", start=False, cache_dir=m.cache, endpoint_url=None)
    done = run(*n.arguments(), check=False)
    assert done.returncode != 0 and not n.is_mounted() and done.stderr.strip()
    m.mount()


@pytest.fixture
def two_lakes():
    made = [lake.Lake(), lake.Lake()]
    yield made
    for one in made:
        one.remove()


@pytest.mark.parametrize("change", ["prefix", "bucket", "endpoint", "name of the endpoint", None])
def test_a_cache_folder_belongs_to_one_endpoint_bucket_and_prefix(base, two_lakes, change):
    """Else what is not published yet would go to another place. Another name of the same endpoint is another one: nobody can tell."""
    one, two = two_lakes
    m = Mount(one, base / "m", source="s3://lake/p", fault="op=put,count=1000000,action=error:-EIO")
    n = Mount(one, base / "n", cache_dir=m.cache)
    try:
        m.mount()
        (m.path / "f").write_bytes(b"not published")
        m.umount()
        n.source = {"prefix": "s3://lake/q", "bucket": "s3://other/p"}.get(change, m.source)
        n.options["endpoint_url"] = {"endpoint": two.endpoint, "name of the endpoint": one.endpoint.replace("127.0.0.1", "localhost")}.get(change, one.endpoint)
        done = run(*n.arguments(), check=False, env=n.env)
        assert n.is_mounted() == (change is None)
        if change:
            assert done.returncode == 1 and f"belongs to {one.endpoint} lake/p/" in done.stderr, done.stderr
            seen = [key for bucket in (one, two) for key in bucket.list() if "/.sluice-probe/" not in key]  # which the end may leave
            assert seen == []
        owner = m.mount(fault=None) if change else n
        owner.wait()
        assert one.list() == ["p/f"] and one.get("p/f") == b"not published" and two.list() == []
    finally:
        n.finish()
        m.finish()


@ROOT_ONLY
def test_a_cache_folder_in_memory_is_warned_of(make_mount):
    m = make_mount(start=False)
    m.cache.mkdir()
    sh(f"mount -t tmpfs -o size=600m,mode=0700 none {m.cache}")
    try:
        m.mount(free_space="1M")
        assert "cache folder is in memory: a power loss takes" in m.log()
        m.umount()
    finally:
        subprocess.run(["umount", "-l", m.cache], timeout=20, check=False)


# ---- other users, and what a bucket may give ----


def test_the_mount_is_nosuid_nodev_and_checks_rights(make_mount):
    for m in (make_mount("own"), make_mount("all", allow_other=True)):
        line = next(x for x in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if x.split()[4] == str(m.path))
        assert {"nosuid", "nodev"} <= set(line.split()[5].split(","))
        assert "default_permissions" in line.split(" - ")[1]
        assert ("allow_other" in line.split(" - ")[1]) == (m.base.name == "all")


@ROOT_ONLY
def test_other_users_see_what_modes_allow(make_mount):
    m = make_mount(allow_other=True)
    (m.path / "private").write_text("secret")
    (m.path / "public").write_text("open")
    os.chmod(m.path / "private", 0o600)
    os.mkdir(m.path / "closed", 0o700)
    (m.path / "closed/f").write_text("x")
    (m.path / "closed/f").read_text()
    os.listdir(m.path / "closed")

    def other(command):
        return subprocess.run(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-c", command], capture_output=True, text=True,
                              timeout=20, check=False)
    assert other(f"cat {m.path}/public").stdout == "open"
    for command in (f"cat {m.path}/private", f"ls {m.path}/closed", f"cat {m.path}/closed/f", f"echo x > {m.path}/public", f"touch {m.path}/new",
                    f"rm {m.path}/public", f"mv {m.path}/public {m.path}/p2", f"chmod 777 {m.path}/private"):
        done = other(command)
        assert done.returncode != 0 and not done.stdout, command
    assert (m.path / "public").read_text() == "open"


@ROOT_ONLY
def test_a_private_mount_is_closed_to_other_users(mount):
    (mount.path / "f").write_text("x")
    os.chmod(mount.path / "f", 0o644)
    done = subprocess.run(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "cat", mount.path / "f"], capture_output=True, timeout=20, check=False)
    assert done.returncode != 0 and not done.stdout


def put_with_metadata(store, key, data, metadata):
    if store.kind == "ceph":
        store.put(key, data, metadata)
        return
    store.put(key, data)
    for name, value in metadata.items():
        os.setxattr(store.root / key, f"user.x-amz-meta-{name}", value.encode())


@pytest.mark.parametrize("mode", ["0104755", "0102755", "0107777", "35309", "0020666", "0060666", "0010644", "037777777777", "-1", "0x1ff", "99999999999999999999"])
def test_a_bucket_gives_no_special_rights_and_no_devices(make_mount, store, mode):
    put_with_metadata(store, "f", b"#!/bin/sh\n", {"mode": mode, "uid": "0", "gid": "0"})
    m = make_mount(posix_meta="on")
    st = os.lstat(m.path / "f")
    assert stat.S_ISREG(st.st_mode), oct(st.st_mode)
    assert not st.st_mode & 0o7000, oct(st.st_mode)
    assert (m.path / "f").read_bytes() == b"#!/bin/sh\n"


@pytest.mark.parametrize("posix_meta", ["on", "auto", "off"])
def test_a_bucket_gives_files_to_others_only_where_it_is_trusted(make_mount, store, posix_meta):
    """Their owner is who mounts, but with --posix-meta on. Modes are taken with auto too, where the metadata was seen: that of an empty object is."""
    for name, data in (("empty", b""), ("f", b"1234")):
        put_with_metadata(store, name, data, {"mode": "0100640", "uid": "12345", "gid": "23456"})
    owner = (12345, 23456) if posix_meta == "on" else (os.geteuid(), os.getegid())
    m = make_mount(posix_meta=posix_meta)
    for _ in range(2):
        assert sorted(os.listdir(m.path)) == ["empty", "f"]
        assert (m.path / "f").read_bytes() == b"1234"
        for name in ("empty", "f"):
            st = os.lstat(m.path / name)
            assert (st.st_uid, st.st_gid) == owner, name
            if posix_meta == "on" or name == "empty":
                assert stat.S_IMODE(st.st_mode) == (0o644 if posix_meta == "off" else 0o640), name
        m.remount()


def test_link_targets_are_text_and_nothing_more(make_mount, store, base):
    """Given back as they are, never followed by the daemon; impossible ones make no link."""
    outside = base / "outside"
    outside.write_text("outside")
    targets = {"up": "../../../../etc/passwd", "abs": str(outside), "loop": "loop", "odd": "a%20b%0Ac", "nul": "a%00b", "empty": "", "long": "x" * 1000}
    for name, target in targets.items():
        put_with_metadata(store, name, b"", {"sluice-symlink": target})
    m = make_mount()
    assert os.readlink(m.path / "up") == "../../../../etc/passwd"
    assert os.readlink(m.path / "abs") == str(outside)
    assert os.readlink(m.path / "odd") == "a b\nc"
    assert os.readlink(m.path / "long") == "x" * 1000
    with pytest.raises(OSError) as e:
        (m.path / "loop").read_bytes()
    assert e.value.errno == errno.ELOOP
    for name in ("nul", "empty"):
        assert stat.S_ISREG(os.lstat(m.path / name).st_mode)
    run("warmup", m.path / "abs", check=False)
    run("evict", m.path / "abs", check=False)
    os.unlink(m.path / "abs")
    m.wait()
    assert outside.read_text() == "outside"


# ---- the control socket ----


@ROOT_ONLY
def test_only_root_and_the_owner_may_ask(mount):
    done = subprocess.run(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", SLUICE, "status", "--json", mount.path], capture_output=True,
                          text=True, timeout=30, check=False)
    assert done.returncode != 0 and '"pid"' not in done.stdout
    for path in pathlib.Path("/run/sluice").glob("*.sock"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not stat.S_IMODE(pathlib.Path("/run/sluice").stat().st_mode) & 0o022


# ---- what is built and installed ----


def test_the_program_is_hardened():
    """Position independent, relocations read-only and bound at start, no executable stack, stack protector, checked calls."""
    if not shutil.which("readelf"):
        pytest.skip("readelf is not there")
    out = {what: sh(f"readelf -W {what} {SLUICE}").stdout for what in ("-h", "-l", "-d", "--dyn-syms")}
    if re.search("__[at]san_init", sh(f"readelf -W -s {SLUICE}").stdout):
        pytest.skip("a sanitizer's build")
    assert re.search(r"Type: +DYN", out["-h"])
    assert "GNU_RELRO" in out["-l"] and re.search(r"BIND_NOW|Flags: NOW", out["-d"])
    assert re.search(r"GNU_STACK.* RW +0", out["-l"]), "the stack may be executed"
    for name in ("__stack_chk_fail", "__memcpy_chk", "__snprintf_chk"):
        assert name in out["--dyn-syms"] or f"{name}@" in out["--dyn-syms"] or name == "__memcpy_chk" and "_chk@" in out["--dyn-syms"], name


def test_the_unit_gives_the_daemon_no_more_than_it_needs():
    unit = (ROOT / "deploy/systemd/sluice@.service.in").read_text()
    lines = {line.split("=", 1)[0]: line.split("=", 1)[1] for line in unit.splitlines() if re.match(r"^[A-Z]\w+=", line)}
    for name, value in {"LimitCORE": "0", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes", "NoNewPrivileges": "yes",
                        "RestrictSUIDSGID": "yes", "SystemCallArchitectures": "native", "UMask": "0077"}.items():
        assert lines.get(name) == value, name
    assert set(lines["RestrictAddressFamilies"].split()) <= {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert "CAP_SYS_PTRACE" not in lines["CapabilityBoundingSet"] and "CAP_SYS_RAWIO" not in lines["CapabilityBoundingSet"]
    assert "SystemCallFilter" in lines
    for name in ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectControlGroups", "PrivateMounts"):
        assert name not in lines, f"{name} would hide the mount from everybody else"


# ---- TLS ----


class TlsLake:
    """The lake by https, of these versions of TLS only."""

    def __init__(self, base, versions):
        self.lake, self.versions = lake.Lake(), versions
        self.identity = Identity(base, "store")
        context = self.context(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.identity.pem, self.identity.key_pem)
        self.lake.server.socket = context.wrap_socket(self.lake.server.socket, server_side=True)
        self.lake.endpoint = self.lake.endpoint.replace("http:", "https:")

    def context(self, protocol):
        made = ssl.SSLContext(protocol)
        made.set_ciphers("ALL:@SECLEVEL=0")  # else this machine's library refuses what is old, too
        made.minimum_version, made.maximum_version = self.versions
        return made

    def speaks(self):
        """The version that a client gets which takes what there is."""
        context = self.context(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.identity.pem)
        with socket.create_connection(self.lake.server.server_address, timeout=10) as link:
            with context.wrap_socket(link, server_hostname="127.0.0.1") as tls:
                return tls.version()


@pytest.fixture
def tls_lake(base):
    made = []

    def make(*versions):
        made.append(TlsLake(base, versions))
        return made[-1]

    yield make
    for server in made:
        server.lake.remove()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
def test_a_store_of_old_tls_is_refused(make_mount, tls_lake, version):
    """1.2 at least; nothing is sent to what speaks less."""
    number = ssl.TLSVersion[version]
    server = tls_lake(number, number)
    assert server.speaks() == version.replace("_", ".")
    server.lake.put("f", b"1234")
    m = make_mount(start=False, source=server.lake.source, endpoint_url=server.lake.endpoint, ca_bundle=server.identity.pem, op_timeout="3s")
    m.store, m.env = server.lake, server.lake.env()
    done = run(*m.arguments(), check=False, env=m.env)
    if number >= ssl.TLSVersion.TLSv1_2:
        assert done.returncode == 0, done.stderr
        assert (m.path / "f").read_bytes() == b"1234"
        m.umount()
        return
    assert done.returncode == 1 and not m.is_mounted()
    assert "the TLS handshake failed" in done.stderr, done.stderr
    assert server.lake.calls == []
