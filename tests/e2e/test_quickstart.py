"""deploy/quickstart.sh from mount to --down, which keeps whatever the store has not got yet."""
import json
import os
import subprocess

import pytest
from mounts import ROOT, eventually, kill_all

BUILD = ROOT / "build"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0 or not (BUILD / "build.ninja").exists(),
                                                   reason="needs root and the plain build")]


class Quickstart:
    def __init__(self, store, base):
        self.store, self.at, self.state = store, base / "mnt", base / "state"
        self.args = ["--s3", store.source, "--endpoint-url", store.endpoint] if store.endpoint else []
        no_apt = base / "bin"  # the packages of the tests are those of the demo
        no_apt.mkdir()
        (no_apt / "apt-get").write_text("#!/bin/sh\necho 'a package is missing' >&2\nexit 1\n")
        (no_apt / "apt-get").chmod(0o755)
        self.env = dict(os.environ, PATH=f"{no_apt}:{os.environ['PATH']}", **store.env())

    def run(self, *args, code=0):
        done = subprocess.run([ROOT / "deploy/quickstart.sh", "--state", self.state, *args], capture_output=True, text=True, check=False,
                              timeout=100, env=self.env, stdin=subprocess.DEVNULL)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def up(self):
        return self.run("--at", self.at, *self.args)

    def sluice(self, *args):
        return subprocess.run([BUILD / "tools/sluice", *map(str, args)], capture_output=True, text=True, check=True, timeout=60, env=self.env).stdout

    def status(self):
        return json.loads(self.sluice("status", "--json", self.at))

    def kill(self):
        status = self.status()
        kill_all([pid for pid in (status["supervisor_pid"], status["pid"]) if pid])

    def object(self, key):
        """Past the mount; the demo lake is a directory of the demo's own."""
        if self.store.endpoint:
            return self.store.get(key)
        return (self.state / "lake" / key).read_bytes()

    def change_object(self, key, data):
        if self.store.endpoint:
            self.store.put(key, data)
        else:
            new = self.state / "new"
            new.write_bytes(data)
            os.replace(new, self.state / "lake" / key)


@pytest.fixture
def quickstart(store, base):
    q = Quickstart(store, base)
    yield q
    if q.state.exists():
        q.run("--down", "--force")


def test_from_mount_to_down(quickstart):
    q = quickstart
    text = q.up()
    assert "loaded and compared" in text and q.object("sluice-quickstart/checkpoint.pt")
    assert "already mounted" in q.up()

    # A conflict is not in the store: nothing goes, and the mount stays.
    mine = q.at / "mine"
    mine.write_bytes(b"base")
    q.sluice("wait", mine)
    with open(mine, "wb") as f:
        f.write(b"only here")
        q.change_object("mine", b"changed elsewhere")
    assert eventually(lambda: q.status()["conflicts"] == 1)
    assert "--force" in q.run("--down", code=1)
    assert q.status()["conflicts"] == 1

    # The same when the daemon is gone, as after a reboot.
    q.kill()
    subprocess.run(["umount", "-l", q.at], check=True, timeout=20)
    refused = q.run("--down", code=1)
    assert "mine" in refused and "--force" in refused and (q.state / "cache/meta").is_dir()

    # Once it is decided, everything goes.
    q.up()
    q.sluice("conflicts", "keep-mine", mine)
    q.sluice("wait", q.at)
    assert q.object("mine") == b"only here"
    q.run("--down")
    assert not q.state.exists() and not q.at.exists()


def test_force_loses_what_is_not_in_the_store(quickstart):
    q = quickstart
    q.up()
    f = open(q.at / "open", "wb")  # never closed: never published
    f.write(b"x")
    q.kill()
    try:
        f.close()
    except OSError:
        pass
    assert "open: not yet published" in q.run("--down", code=1)
    q.run("--down", "--force")
    assert not q.state.exists() and not q.at.exists()
