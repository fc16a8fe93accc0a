"""Fixtures of tests/e2e, and beside them: proxy (before a haproxy before the gateway), lake (a mount behind the proxy, with what was written to it).

Whatever a test did to it, a lake is examined at the end: see Lake.examine().
"""
import concurrent.futures
import hashlib
import importlib.util
import os
import pathlib
import re
import sys

import pytest

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(E2E)]
spec = importlib.util.spec_from_file_location("e2e_fixtures", E2E / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
spec.loader.exec_module(e2e)
pytest_configure = e2e.pytest_configure
base, store, make_mount = e2e.base, e2e.store, e2e.make_mount

import stores  # noqa: E402
from haproxy import Haproxy  # noqa: E402
from mounts import MIB, POINTS, eventually, in_thread, run  # noqa: E402
from proxy import FaultProxy  # noqa: E402

SECRETS = re.compile(r"AWS4-HMAC|Signature=|X-Amz-Signature", re.I)


PARTS = 17 * MIB  # four parts of 5 MiB
BIG = 300 * MIB  # in parts of the default size
SIZES = [0, 5 * MIB, PARTS]


def pytest_collection_modifyitems(config, items):
    """What waits longest is begun first, each by another worker: pytest-xdist gives each worker so many items to begin with."""
    e2e.pytest_collection_modifyitems(config, items)
    slow = [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in slow]
    run = max((len(items) + len(slow)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) // 4, 2)
    for i, item in enumerate(slow):
        items.insert(i * run, item)


def blob(seed, size):
    return hashlib.shake_128(str(seed).encode()).digest(size)


def digest(data):
    return len(data), hashlib.md5(data).hexdigest()


class Lake:
    """A mount behind the proxy, and all that was ever closed through it.

    files: what has to be there in the end. versions: the digest of every state that a name may have shown upstream, as often as it was closed in it.
    """

    def __init__(self, m, store, proxy):
        self.m, self.store, self.proxy = m, store, proxy
        self.path = m.path
        self.files, self.versions = {}, {}
        self.worker, self.speed = None, 1
        self.secrets = {value for name, value in m.env.items() if name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
        self.outputs = []

    def fast(self, speed, patience=10):
        """Of the build whose clock runs that much faster; patience: the operation timeout in seconds of ours, or a store that is there would be given up."""
        if not os.access(POINTS, os.X_OK):
            pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
        self.m.program = POINTS
        self.m.env["SLUICE_CLOCK_SCALE"] = str(speed)
        self.m.options["op_timeout"] = f"{patience * speed}s"
        self.speed = speed
        return self

    def mount(self, **options):
        self.m.mount(**options)
        self.worker = self.m.status()["pid"]
        return self

    def write(self, name, data):
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)
        self.wrote(name, data)

    def wrote(self, name, data):
        self.files[name] = data
        self.may_show(name, data)

    def may_show(self, name, data):
        self.versions.setdefault(name, []).append(digest(data))

    def put(self, name, data):
        """By somebody else, past the proxy."""
        self.store.put(name, data)
        self.wrote(name, data)

    def removed(self, name):
        del self.files[name]

    def in_time(self, work):
        """What waits for the store ends by the operation timeout and five seconds, whatever it ends with. Where the clock runs fast a busy machine's seconds are many more."""
        return in_thread(work)(int(self.m.options["op_timeout"].rstrip("s")) + 5 if self.speed == 1 else 30)

    def read(self, name):
        return (self.path / name).read_bytes()

    def check(self, *names):
        for name in names or self.files:
            assert self.read(name) == self.files[name], name

    def wait(self, seconds=180):
        self.m.wait(timeout=seconds * self.speed)

    def status(self, name):
        return self.m.status()[name]

    def until_told(self, name, words):
        """Kept here, tried again by itself, and said why."""
        def told():
            info = self.m.info(name)
            return info if info["state"] == "retrying" and "error" in info else None
        info = eventually(told, 20)
        assert info and re.search(words, info["error"]), self.m.info(name)
        assert f"will be tried again key='{name}'" in self.m.log()
        assert self.status("dirty_files") > 0
        self.check(name)

    def loses_to_somebody(self, name, data, refusal):
        """Written here, and by somebody else right before the last request: theirs stands there, ours is kept and listed, and published by who decides so."""
        def somebody_else(x):
            x.take_all()
            self.store.put(name, b"theirs")
            refusal(x)
        self.proxy.rule(("put", "complete"), somebody_else, key=name)
        self.write(name, data)
        assert eventually(lambda: self.status("conflicts") == 1, 60), self.m.status()
        assert self.store.get(name) == b"theirs"
        assert eventually(lambda: self.read(name) == b"theirs", 10)
        assert name in run("conflicts", self.path).stdout
        run("conflicts", "keep-mine", self.path / name)
        self.may_show(name, b"theirs")

    def everything_upstream(self):
        """name -> every version that the bucket ever had, oldest first: (size, MD5 or None, how to get its bytes)."""
        found = {}
        for page in self.store.client.get_paginator("list_object_versions").paginate(Bucket=self.store.bucket):
            for row in page.get("Versions", []):
                found.setdefault(row["Key"], []).append(row)
        return {key: sorted(rows, key=lambda row: row["LastModified"]) for key, rows in found.items()}

    def bytes_of(self, row):
        return self.store.client.get_object(Bucket=self.store.bucket, Key=row["Key"], VersionId=row["VersionId"])["Body"].read()

    def upstream(self, name):
        """The bytes of each version of one object, oldest first."""
        return [self.bytes_of(row) for row in self.everything_upstream().get(name, [])]

    def is_one_of(self, row, states):
        etag = row["ETag"].strip('"')
        if "-" not in etag:
            return (row["Size"], etag) in states
        return row["Size"] in [size for size, _ in states] and digest(self.bytes_of(row)) in states

    def examine(self):
        """After any fault: nothing lost, nothing wrong, nothing half, nothing twice, nobody died, no secret told."""
        self.proxy.heal()
        if self.m.is_mounted():
            self.wait()
            self.check()
            status = self.m.status()
            assert status["dirty_files"] == status["parked"] == status["conflicts"] == status["quarantined"] == 0, status
            assert self.worker in (None, status["pid"]), "the worker died"
        assert self.store.list() == {name: len(data) for name, data in self.files.items()}
        upstream = self.everything_upstream()
        for name, states in self.versions.items():
            found = upstream.get(name, [])
            wrong = [row["Size"] for row in found if not self.is_one_of(row, states)]
            assert not wrong, f"{name} was visible with {wrong} bytes that nobody wrote"
            assert name not in self.files or self.is_one_of(found[-1], [digest(self.files[name])]), name
            assert len(found) <= len(states), f"{name} was made {len(found)} times"
        assert eventually(lambda: self.store.uploads(empty=False) == [], 20)
        self.examine_secrets()

    def examine_secrets(self):
        texts = [self.m.log(), *self.outputs]
        if self.m.is_mounted():
            texts += [run("status", "--json", self.path).stdout]
            texts += [pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in self.m.pids()]
        for text in texts:
            for secret in self.secrets:
                assert secret not in text
            assert not SECRETS.search(text), SECRETS.search(text)


def empty(store):
    """Every large version goes: what is left of 300 MiB here and there fills a small gateway, which then hangs."""
    store.client.put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": "Suspended"})
    rows = [{"Key": row["Key"], "VersionId": row["VersionId"]}
            for page in store.client.get_paginator("list_object_versions").paginate(Bucket=store.bucket)
            for row in page.get("Versions", []) if row["Size"] >= stores.LARGE]

    def remove(some):
        store.client.delete_objects(Bucket=store.bucket, Delete={"Objects": some, "Quiet": True})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(remove, [rows[i:i + 200] for i in range(0, len(rows), 200)]))


@pytest.fixture(scope="session")
def gateway(tmp_path_factory):
    """host:port of a haproxy before the gateway, as real lakes have one; the faults are made before that."""
    front = Haproxy(tmp_path_factory.mktemp("haproxy"), os.environ["S3_ENDPOINT"].removeprefix("http://")).start()
    yield front.url.removeprefix("http://")
    front.stop()


@pytest.fixture
def proxy(store, gateway):
    with FaultProxy(gateway) as made:
        yield made


@pytest.fixture
def make_lake(make_mount, store, proxy):
    """make_lake(start=True, **options): a mount behind the proxy. Its bucket keeps every version that was ever visible."""
    made = []

    def make(name="m", start=True, **options):
        if not made:
            store.client.put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"})
        options = {"endpoint_url": proxy.url, "log_level": "debug", "op_timeout": "20s", "free_space": "1%", **options}
        lake = Lake(make_mount(name, start=False, **options), store, proxy)
        made.append(lake)
        return lake.mount() if start else lake

    yield make
    try:
        for lake in made:
            print(lake.m.log()[-5000:])  # shown if the test fails
            lake.examine()
    finally:
        for lake in made:
            if lake.m.is_mounted():
                lake.m.umount()
        if made:
            empty(store)


@pytest.fixture
def ready_lake(make_lake):
    """ready_lake(**options): one whose mount knows already what the store can do, so that rules meet what the test does and nothing else."""
    def make(**options):
        ready = make_lake(**options)
        ready.write("ready", b"before any fault")
        ready.wait()
        return ready
    return make


@pytest.fixture
def lake(ready_lake):
    return ready_lake()


@pytest.fixture
def parts(ready_lake):
    """Its uploads have parts of 5 MiB."""
    return ready_lake(part_size="5M")


def cold(lake, name, data):
    """An object that is not here yet."""
    lake.put(name, data)
    assert eventually(lambda: name in os.listdir(lake.path), 10)


__all__ = ["BIG", "MIB", "PARTS", "SIZES", "base", "blob", "cold", "lake", "make_lake", "make_mount", "parts", "proxy", "ready_lake", "store"]
