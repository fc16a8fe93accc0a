"""Rules: settings by path, files that are kept here, on a mount, over remounts and kills."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest
from mounts import MIB, ROOT, eventually, is_gone, run

TMP = "tmp/**=local-only"
BOOTS = pathlib.Path(os.environ.get("SLUICE_POWER_RECORD", ROOT / "build/tests/crash/libpower_record.so"))  # gives the daemon POWER_BOOT_ID


def refused(m, rule, *words):
    done = run(*m.arguments({"rule": rule}), check=False, env=m.env)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr, done.stderr


def with_rules(make_mount, *rules, name="m", **options):
    """A mount with several rules, by its config file."""
    m = make_mount(name, start=False, **options)
    config = m.base / "rules.conf"
    config.write_text("".join(f"rule = {rule}\n" for rule in rules))
    m.options["config"] = config
    return m.mount()


@pytest.mark.parametrize("rule,word", [("a=pim=2", "'pim'"), ("a=pin=x", "pin 'x'"), ("a", "GLOB=KEY"), ("a=local-only,close=remote", "close=remote"),
                                       ("a/*=pin=1,tier=memory", "--memory-cache"), ("*.pt=pin=2", "folder")])
def test_bad_rule_is_a_usage_error_that_names_it(make_mount, rule, word):
    refused(make_mount(start=False), rule, f"'{rule}'", word)


def test_most_specific_rule_is_shown_with_what_holds(make_mount):
    m = with_rules(make_mount, "ckpt/**=pin=2", "ckpt/final/**=close=remote,hold=no,metadata-ttl=5s")
    (m.path / "ckpt/final").mkdir(parents=True)
    (m.path / "ckpt/final/x.tmp").write_bytes(b"1")
    (m.path / "ckpt/y").write_bytes(b"1")
    (m.path / "z").write_bytes(b"1")
    info = m.info("ckpt/final/x.tmp")
    assert info["rule"] == "ckpt/final/**=close=remote,hold=no,metadata-ttl=5s"
    assert info["settings"]["close"] == "remote" and info["settings"]["hold"] == "no" and info["settings"]["metadata_ttl"] == "5s"
    assert m.info("ckpt")["rule"] == "ckpt/**=pin=2"
    assert m.info("ckpt/y")["settings"]["pin"] == "2"
    z = m.info("z")
    assert z["rule"] is None and z["settings"]["close"] == "buffered" and z["settings"]["hold"] == "by name"
    assert m.status()["rules"] == ["ckpt/**=pin=2", "ckpt/final/**=close=remote,hold=no,metadata-ttl=5s"]
    assert "rule" in run("info", m.path / "z").stdout and "ckpt/final/**" in run("status", m.path).stdout
    assert "rule = ckpt/**=pin=2  # config file" in run("status", "--config", m.path).stdout


def test_close_and_fsync_wait_for_the_store_where_a_rule_says_so(make_mount, store):
    m = with_rules(make_mount, "final/**=close=remote", "logs/**=fsync=remote")
    for name in ("final", "logs"):
        (m.path / name).mkdir()
    (m.path / "final/a").write_bytes(b"done")
    assert store.get("final/a") == b"done"
    with open(m.path / "logs/a", "wb", buffering=0) as f:
        f.write(b"line")
        os.fsync(f.fileno())
        assert store.get("logs/a") == b"line"
    os.rename(m.path / "logs/a", m.path / "final/b")  # another rule applies from now on
    (m.path / "final/b").write_bytes(b"again")
    assert store.get("final/b") == b"again"


def test_hold_and_order_by_rule(make_mount, store):
    m = with_rules(make_mount, "now/**=hold=no", "later/**=hold=yes", "loose/**=order=none", hold_delay="1h")
    for name in ("now", "later", "loose"):
        (m.path / name).mkdir()
    (m.path / "now/x.tmp").write_bytes(b"1")
    m.wait("now")
    assert store.get("now/x.tmp") == b"1"
    (m.path / "later/x").write_bytes(b"2")
    assert m.info("later/x")["state"] == "held"
    (m.path / "loose/x.tmp").write_bytes(b"held")  # what comes after it does not wait
    (m.path / "loose/y").write_bytes(b"3")
    m.wait("loose/y")
    assert m.info("loose/x.tmp")["state"] == "held"
    os.rename(m.path / "later/x", m.path / "now/x")
    m.wait("now")
    assert store.get("now/x") == b"2"


def test_metadata_ttl_by_rule(make_mount, store):
    for name in ("live", "still"):
        store.put(f"{name}/a", b"1")
    m = with_rules(make_mount, "live/**=metadata-ttl=0", metadata_ttl="1h", negative_ttl="0")
    for name in ("live", "still"):
        assert os.listdir(m.path / name) == ["a"]
        store.put(f"{name}/b", b"2")
    assert sorted(os.listdir(m.path / "live")) == ["a", "b"]
    assert os.listdir(m.path / "still") == ["a"]


# ---- local-only ----

def test_local_files_stay_here_over_remount_and_kill(make_mount, store):
    m = make_mount(rule=TMP)
    (m.path / "tmp/deep").mkdir(parents=True)
    (m.path / "tmp/deep/a").write_bytes(os.urandom(MIB))
    os.symlink("a", m.path / "tmp/deep/link")
    want = (m.path / "tmp/deep/a").read_bytes()
    (m.path / "other").write_bytes(b"x")
    m.wait(timeout=30)
    status = m.status()
    assert (status["dirty_files"], status["dirty_bytes"], status["pending_operations"]) == (0, 0, 0)
    assert (status["local_only_files"], status["local_only_bytes"]) == (1, MIB)
    assert m.info("tmp/deep/a")["state"] == "local" and m.info("tmp/deep/a")["rule"] == TMP
    run("umount", "--drain=30s", m.path)
    m.mount()
    assert (m.path / "tmp/deep/a").read_bytes() == want
    run("evict", m.path / "tmp", check=False)
    (m.path / "tmp/b").write_bytes(b"second")
    m.kill9()
    m.mount()
    assert (m.path / "tmp/deep/a").read_bytes() == want and (m.path / "tmp/b").read_bytes() == b"second"
    assert os.readlink(m.path / "tmp/deep/link") == "a"
    assert m.kill_worker()
    assert (m.path / "tmp/b").read_bytes() == b"second"
    m.wait(timeout=30)
    assert list(store.list()) == ["other"]
    assert run("fsck", "--offline", m.cache, check=False).returncode != 0  # in use
    m.umount()
    assert "kept here only" in run("fsck", m.cache, env=m.env).stdout
    m.mount()


@pytest.mark.parametrize("by", ["umount", "SIGTERM"])
def test_a_reboot_after_an_end_in_order_takes_nothing_that_was_closed(make_mount, by):
    if not BOOTS.exists():
        pytest.skip(f"{BOOTS} is not built")
    m = make_mount(start=False, rule=TMP, hold="*.part", hold_delay="1h")
    m.env.update(LD_PRELOAD=str(BOOTS), POWER_BOOT_ID="first")
    if "ASAN_OPTIONS" in os.environ:  # its runtime wants to be the first library
        m.env["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":verify_asan_link_order=0"
    m.mount()
    (m.path / "tmp").mkdir()
    (m.path / "tmp/a").write_bytes(b"kept here")
    (m.path / "b.part").write_bytes(b"not published yet")
    pids = m.pids()
    if by == "umount":
        m.umount()
    else:
        os.kill(pids[0], signal.SIGTERM)
        assert eventually(lambda: all(map(is_gone, pids)) and not m.is_mounted())
    m.env.update(POWER_BOOT_ID="second")
    m.mount()
    assert (m.info("tmp/a")["state"], m.info("b.part")["state"]) == ("local", "held")
    assert m.status()["quarantined"] == 0
    assert (m.path / "tmp/a").read_bytes() == b"kept here" and (m.path / "b.part").read_bytes() == b"not published yet"


def test_a_file_left_open_by_a_kill_is_local_too(make_mount):
    m = make_mount(rule=TMP)
    (m.path / "tmp").mkdir()
    fd = os.open(m.path / "tmp/open", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"half")
    m.wait(timeout=30)  # neither does anybody wait for it now
    m.kill9()
    with contextlib.suppress(OSError):  # its mount is gone
        os.close(fd)
    m.mount()
    assert (m.path / "tmp/open").read_bytes() == b"half"
    m.wait(timeout=30)
    run("wait", "--timeout", "30s", m.path / "tmp/open")


def test_rename_in_and_out_of_what_is_local(make_mount, store):
    m = make_mount(rule=TMP)
    (m.path / "tmp/d").mkdir(parents=True)
    (m.path / "out").mkdir()
    (m.path / "tmp/a").write_bytes(b"made here")
    os.rename(m.path / "tmp/a", m.path / "out/a")
    (m.path / "tmp/d/b").write_bytes(b"in a directory")
    os.rename(m.path / "tmp/d", m.path / "out/d")
    m.wait(timeout=60)
    assert store.get("out/a") == b"made here" and store.get("out/d/b") == b"in a directory"
    assert m.status()["local_only_files"] == 0
    run("evict", m.path / "out")
    os.rename(m.path / "out/a", m.path / "tmp/a")  # what was in the store comes back and leaves it
    assert (m.path / "tmp/a").read_bytes() == b"made here"
    m.wait(timeout=60)
    assert store.list() == {"out/d/b": 14}
    assert m.status()["local_only_files"] == 1
    m.kill9()
    m.mount()
    assert (m.path / "tmp/a").read_bytes() == b"made here"
    with pytest.raises(OSError, match="cross-device"):
        os.rename(m.path / "out/d", m.path / "tmp/d")
    with pytest.raises(OSError, match="cross-device"):
        os.link(m.path / "out/d/b", m.path / "tmp/b")
    subprocess.run(["mv", m.path / "out/d", m.path / "tmp/d"], check=True, timeout=60)
    m.wait(timeout=60)
    assert not store.list() and (m.path / "tmp/d/b").read_bytes() == b"in a directory"


def test_objects_that_others_put_there_are_served_and_removed(make_mount, store):
    store.put("tmp/theirs", b"from elsewhere")
    m = make_mount(rule=TMP)
    assert (m.path / "tmp/theirs").read_bytes() == b"from elsewhere"
    (m.path / "tmp/theirs").write_bytes(b"changed here")
    m.wait(timeout=30)
    assert store.get("tmp/theirs") == b"from elsewhere"
    m.remount()
    assert (m.path / "tmp/theirs").read_bytes() == b"changed here"
    os.unlink(m.path / "tmp/theirs")
    m.wait(timeout=30)
    assert not store.list()


def test_without_the_rule_local_files_are_published_with_it_dirty_ones_are_not(make_mount, store):
    m = make_mount(rule=TMP)
    (m.path / "tmp").mkdir()
    (m.path / "tmp/a").write_bytes(b"kept")
    m.umount()
    m.options["rule"] = None
    m.options["fault"] = "op=put,action=error:-EIO"
    m.mount()
    (m.path / "tmp/b").write_bytes(b"dirty")
    assert eventually(lambda: m.status()["dirty_files"] == 2)
    m.options.update(rule=TMP, fault=None)
    m.remount()
    m.wait(timeout=30)
    assert m.status()["local_only_files"] == 2 and not store.list()
    m.options["rule"] = None
    m.remount()
    m.wait(timeout=60)
    assert store.get("tmp/a") == b"kept" and store.get("tmp/b") == b"dirty"
    assert m.status()["local_only_files"] == 0


def test_ttl_removes_what_nobody_has_open(make_mount):
    m = make_mount(rule="tmp/**=local-only,ttl=2s")
    (m.path / "tmp").mkdir()
    (m.path / "tmp/short").write_bytes(b"1")
    (m.path / "other").write_bytes(b"stays")
    with open(m.path / "tmp/open", "wb") as f:
        f.write(b"2")
        f.flush()
        assert eventually(lambda: not (m.path / "tmp/short").exists(), 60)
        assert (m.path / "tmp/open").exists()
    m.remount()
    assert eventually(lambda: os.listdir(m.path / "tmp") == [], 60)
    assert (m.path / "other").read_bytes() == b"stays"
    assert eventually(lambda: m.status()["local_only_files"] == 0)


def test_copy_into_what_is_local_is_made_here(make_mount, store):
    data = os.urandom(20 * MIB)
    store.put("big", data)
    m = make_mount(rule=TMP)
    (m.path / "tmp").mkdir()
    subprocess.run(["cp", m.path / "big", m.path / "tmp/big"], check=True, timeout=60)
    assert (m.path / "tmp/big").read_bytes() == data
    m.wait(timeout=30)
    assert list(store.list()) == ["big"] and not store.uploads()
    assert json.loads(run("info", "--json", m.path / "tmp/big").stdout)["cached_bytes"] == len(data)
