"""Events of the store: what other programs do to the bucket is seen without a listing, whoever is not entitled is turned away."""
import contextlib
import errno
import http.client
import json
import os
import pathlib
import re
import socket
import urllib.parse

import pytest
from mounts import eventually, run

SECRET = "an-events-secret-0001"
LONG = {"metadata_ttl": "1h", "negative_ttl": "1h"}  # nothing is seen by a listing within a test


class Daemon:
    """A mount that takes events, and who sends them."""

    def __init__(self, make_mount, base, secret=True, **options):
        if secret:
            file = base / "events-secret"
            file.write_text(SECRET + "\n")
            file.chmod(0o600)
            options["events_secret_file"] = file
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.mount = make_mount(http=f"127.0.0.1:{self.port}", **{**LONG, **options})
        self.path = self.mount.path
        self.store = self.mount.store
        self.bucket = getattr(self.store, "bucket", None) or self.store.root.name

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def post(self, body, headers=None, where="/events", **who):
        link = self.connect(**who)
        try:
            link.request("POST", where, body=body if isinstance(body, bytes) else json.dumps(body).encode(),
                         headers={"Authorization": f"Bearer {SECRET}"} if headers is None else headers)
            return link.getresponse().status
        finally:
            link.close()

    def record(self, key, name="ObjectCreated:Put", source="aws:s3", bucket=None, **about):
        quoted = urllib.parse.quote_plus(key, safe="/") if source == "aws:s3" else key
        return {"eventSource": source, "eventName": name, "s3": {"bucket": {"name": bucket or self.bucket}, "object": {"key": quoted, **about}}}

    def tell(self, key, name="ObjectCreated:Put", **kw):
        assert self.post({"Records": [self.record(key, name, **kw)]}) == 200

    def count(self, name):
        return self.mount.status()[f"events_{name}"]


def content(path):
    """None: it was replaced while it was read."""
    try:
        return path.read_bytes()
    except OSError as e:
        assert e.errno == errno.ESTALE
        return None


@pytest.fixture
def daemon(make_mount, base):
    return Daemon(make_mount, base)


def test_new_changed_and_removed_objects_are_seen_at_once(daemon):
    store, path = daemon.store, daemon.path
    store.put("d/f", b"one")
    assert os.listdir(path / "d") == ["f"]
    assert not (path / "d/new one+two").exists()
    assert (path / "d/f").read_bytes() == b"one"
    ino = (path / "d/f").stat().st_ino

    store.put("d/new one+two", b"new")
    daemon.tell("d/new one+two")
    assert eventually(lambda: (path / "d/new one+two").exists(), 10, 0.005)
    assert sorted(os.listdir(path / "d")) == ["f", "new one+two"]

    with open(path / "d/f", "rb") as reader:
        store.put("d/f", b"two!")
        daemon.tell("d/f")
        assert eventually(lambda: content(path / "d/f") == b"two!", 10, 0.005)
        assert reader.read() == b"one"
    assert (path / "d/f").stat().st_ino != ino

    store.delete("d/f")
    daemon.tell("d/f", "ObjectRemoved:Delete")
    assert eventually(lambda: not (path / "d/f").exists(), 10, 0.005)
    assert os.listdir(path / "d") == ["new one+two"]

    assert os.listdir(path) == ["d"]
    store.put("deep/er/model/shard", b"s")
    daemon.tell("deep/er/model/shard")
    assert eventually(lambda: (path / "deep/er/model/shard").exists(), 10, 0.005)
    assert sorted(os.listdir(path)) == ["d", "deep"]


def test_what_is_made_where_nobody_has_looked_is_warmed(make_mount, base, store):
    store.put("models/llama/old.bin", b"was there")
    daemon = Daemon(make_mount, base, on_create="models/**=warm")
    for key in ("models/llama/part-1", "models/llama/part-2", "other/part-1"):
        store.put(key, os.urandom(1 << 20))
        daemon.tell(key)
    assert eventually(lambda: daemon.mount.status()["downloaded_bytes"] >= 2 << 20)  # nobody asks for a path
    assert daemon.mount.info("models/llama/part-1")["cached_bytes"] == 1 << 20
    assert daemon.mount.info("models/llama/part-2")["cached_bytes"] == 1 << 20
    assert daemon.mount.info("models/llama/old.bin")["cached_bytes"] == 0
    assert daemon.mount.info("other/part-1")["cached_bytes"] == 0


def test_forged_malformed_and_foreign_events_change_nothing(daemon):
    store, path = daemon.store, daemon.path
    store.put("d/f", b"one")
    assert os.listdir(path / "d") == ["f"]
    store.delete("d/f")
    gone = {"Records": [daemon.record("d/f", "ObjectRemoved:Delete")]}
    assert daemon.post(gone, headers={}) == 401
    assert daemon.post(gone, headers={"Authorization": "Bearer wrong-wrong-wrong-wrong"}) == 403
    assert daemon.post(gone, headers={}, where="/events?token=guess") == 403
    assert daemon.post(b"{not json") == 400
    assert daemon.post(b"x" * (2 << 20)) == 413
    assert daemon.post(gone, where="/metrics") == 405
    assert daemon.count("refused") == 5
    assert daemon.post({"Records": [daemon.record("d/f", "ObjectRemoved:Delete", bucket="another")]}) == 200
    assert daemon.count("outside") == 1
    assert (path / "d/f").exists()
    assert SECRET not in daemon.mount.log()
    assert daemon.post(gone, headers={}, where=f"/events?token={SECRET}") == 200
    assert eventually(lambda: not (path / "d/f").exists(), 10)
    daemon.tell("d/f")  # too late, and of what is not there any more
    assert eventually(lambda: daemon.count("received") == daemon.count("applied") + daemon.count("ignored") + daemon.count("outside"), 10)
    assert not (path / "d/f").exists()


def test_own_publishes_cost_nothing_and_unpublished_changes_win(make_mount, base):
    daemon = Daemon(make_mount, base, hold="*.held")
    store, path = daemon.store, daemon.path
    (path / "mine").write_bytes(b"mine")
    daemon.mount.wait()
    info = daemon.mount.info("mine")
    before = daemon.mount.status()["requests"]["head"]
    daemon.tell("mine", eTag=info["etag"], size=4)
    assert eventually(lambda: daemon.count("ignored") == 1, 10)
    assert daemon.mount.status()["requests"]["head"] == before
    ino = (path / "mine").stat().st_ino
    (path / "later.held").write_bytes(b"ours")
    store.put("later.held", b"theirs")
    daemon.tell("later.held")
    assert eventually(lambda: daemon.count("ignored") == 2, 10)
    assert (path / "later.held").read_bytes() == b"ours"
    assert (path / "mine").stat().st_ino == ino


def test_events_while_the_daemon_was_away_are_not_missed(make_mount, base):
    daemon = Daemon(make_mount, base)
    daemon.store.put("d/f", b"one")
    daemon.store.put("e/f", b"one")
    assert os.listdir(daemon.path / "d") == ["f"]
    assert (daemon.path / "e/f").stat().st_size == 3
    assert daemon.mount.kill_worker()
    daemon.store.put("d/g", b"two")  # its event found nobody
    daemon.store.put("e/f", b"other")
    assert eventually(lambda: sorted(os.listdir(daemon.path / "d")) == ["f", "g"], 30)
    assert eventually(lambda: (daemon.path / "e/f").stat().st_size == 5)  # what the kernel knows


def test_mounts_on_directories_of_ours_outlive_a_doubt(make_mount, base):
    """The kernel takes away what is mounted on a name that it drops."""
    daemon = Daemon(make_mount, base)
    daemon.store.put("d/f", b"one")
    daemon.store.put("d/sub/f", b"one")
    assert sorted(os.listdir(daemon.path / "d")) == ["f", "sub"]
    (base / "over").mkdir()
    (base / "over/there").write_bytes(b"over")
    target = daemon.path / "d/sub"
    done = run("--bind", base / "over", target, program="mount", check=False)
    if done.returncode:
        pytest.skip(f"no bind mount can be made here: {done.stderr}")
    try:
        assert daemon.mount.kill_worker()
        daemon.store.put("d/g", b"two")
        assert eventually(lambda: "g" in os.listdir(daemon.path / "d"), 30)  # all of it was doubted
        daemon.tell("d/", "ObjectCreated:*")
        for _ in range(3):
            assert os.listdir(target) == ["there"] and (target / "there").read_bytes() == b"over"
        assert f" {target} " in pathlib.Path("/proc/self/mountinfo").read_text()
    finally:
        run("-l", target, program="umount", check=False)
    assert os.listdir(target) == ["f"]


def test_options_for_events_are_checked(make_mount, base):
    bad = base / "bad"
    bad.write_text("short\n")
    bad.chmod(0o600)
    m = make_mount(start=False)
    m.options["events_secret_file"] = bad
    done = run(*m.arguments(), env=m.env, check=False)
    assert done.returncode != 0 and "--http" in done.stderr
    m.options["http"] = ":0"
    done = run(*m.arguments(), env=m.env, check=False)
    assert done.returncode != 0 and "at least 16" in done.stderr
    assert not m.is_mounted()


# ---- a real gateway that sends them ----


@contextlib.contextmanager
def topic_of(daemon, endpoint, attributes=None):
    """The bucket's notifications are pushed to the daemon."""
    import boto3
    from botocore.config import Config
    store = daemon.store
    sns = boto3.client("sns", endpoint_url=store.endpoint, region_name="default",  # what such a gateway signs topics by
                       config=Config(signature_version="s3"))
    name = "t" + re.sub(r"\W", "", store.bucket)
    arn = sns.create_topic(Name=name, Attributes={"push-endpoint": endpoint, "persistent": "false", **(attributes or {})})["TopicArn"]
    store.client.put_bucket_notification_configuration(Bucket=store.bucket, NotificationConfiguration={
        "TopicConfigurations": [{"Id": "all", "TopicArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]})
    yield arn
    sns.delete_topic(TopicArn=arn)


@pytest.fixture
def topic(daemon):
    with topic_of(daemon, f"http://127.0.0.1:{daemon.port}/events?token={SECRET}") as arn:
        yield arn


@pytest.mark.ceph
def test_gateway_pushes_what_others_do(daemon, topic):
    store, path = daemon.store, daemon.path
    assert os.listdir(path) == []
    for name in ("plain", "a b+c%20d", "ü/é", "deep/er/x"):
        store.put(name, b"1")
        assert eventually((path / name).exists, 10, 0.005), (name, daemon.mount.log()[-2000:])
    store.put("plain", b"22")
    assert eventually(lambda: content(path / "plain") == b"22", 10, 0.005)
    store.delete("deep/er/x")
    assert eventually(lambda: not (path / "deep").exists(), 10, 0.005)
    assert daemon.count("applied") >= 6


@pytest.mark.ceph
def test_gateway_tells_of_our_own_publishes_and_nothing_comes_of_it(daemon, topic):
    store, path = daemon.store, daemon.path
    inos = {}
    for i in range(20):
        (path / f"f{i}").write_bytes(b"%d" % i * 100)
        inos[i] = (path / f"f{i}").stat().st_ino
    (path / "d").mkdir()
    (path / "big").write_bytes(os.urandom(20 << 20))
    daemon.mount.wait(timeout=60)
    os.rename(path / "f0", path / "d/g0")
    os.unlink(path / "f1")
    daemon.mount.wait(timeout=60)
    assert eventually(lambda: daemon.count("received") >= 24, 30)
    assert eventually(lambda: daemon.count("received") <= daemon.count("applied") + daemon.count("ignored") + daemon.count("outside") + 1, 30)
    assert daemon.count("applied") == 0
    assert {i: (path / f"f{i}").stat().st_ino for i in range(2, 20)} == {i: inos[i] for i in range(2, 20)}
    assert sorted(store.list()) == sorted(["big", "d/g0"] + [f"f{i}" for i in range(2, 20)])
    assert daemon.mount.status()["conflicts"] == 0


def test_the_secret_may_be_named_from_where_the_mount_is_made(daemon, base):
    """The daemon works elsewhere by then, and reads it again when it changes."""
    m = daemon.mount
    m.umount()
    run(*m.arguments({"events_secret_file": "events-secret"}), env=m.env, cwd=base)
    assert daemon.post({"Records": []}) == 200
