"""kill -9 of the daemon again and again under load, of a store that fails now and then: what close() acknowledged is there after every restart, and in the end the store holds exactly the tree,
and never showed anything else than what was closed."""
import collections
import hashlib
import os
import pathlib
import random
import threading
import time

import pytest
from mounts import MIB, NIGHT, QUICK, eventually, in_thread

CYCLES = 4 if QUICK else 60 if NIGHT else 16
SIZES = (0, 1, 700, 5000, 70000, 300000, 6 * MIB)
FAULTS = ";".join(["op=put,prob=0.2,action=delay:30ms", "op=part,prob=0.2,action=delay:60ms", "op=head,prob=0.3,action=delay:80ms",
                   *(f"op={op},prob=0.05,action={how}:-EIO" for op in ("put", "part", "complete", "copy", "part-copy", "delete") for how in ("error", "lost"))])


def digest(data):
    return len(data), hashlib.md5(data).hexdigest()


class Closed:
    """What programs closed, or began to close, under each name or renamed to it: what the store may ever have shown there."""

    def __init__(self):
        self.kills = 0
        self.times = collections.Counter()  # (key, digest) -> how often
        self.since = {}  # the same -> kills before the first

    def note(self, key, data):
        what = key, digest(data)
        self.since.setdefault(what, self.kills)
        self.times[what] += 1

    def examine(self, store):
        """Nothing else was visible, and nothing twice but for what a kill since then may have cut off. How many there were, and which more often than closed."""
        found = collections.Counter((key, self.digest_of(store, row)) for key, rows in store.versions().items() for row in rows)
        wrong = [what for what in found if what not in self.times]
        assert not wrong, f"what nobody closed was visible: {wrong[:5]}"
        more = found - self.times
        wrong = [(what, n) for what, n in more.items() if n > self.kills - self.since[what]]
        assert not wrong, f"published again and again: {wrong[:5]}"
        return found.total(), dict(more)

    @staticmethod
    def digest_of(store, row):
        etag = row["ETag"].strip('"')
        return digest(store.bytes_of(row)) if "-" in etag else (row["Size"], etag)


class Worker:
    """One program in a directory of its own. `files` maps name -> bytes acknowledged; a call that fails leaves its names in `unsure`: either state is right."""

    def __init__(self, top, number, seed, closed):
        self.random = random.Random(seed)
        self.dir, self.closed = top / f"w{number}", closed
        self.files, self.unsure, self.count = {}, {}, 0

    def may_show(self, name, data):
        self.closed.note(f"{self.dir.name}/{name}", data)

    def write(self, name, data):
        self.may_show(name, data)
        self.unsure = {name: {self.files.get(name), data, "torn"}}
        with open(self.dir / name, "wb", buffering=0) as f:
            for off in range(0, len(data), 256 << 10):
                f.write(data[off:off + (256 << 10)])
        self.files[name] = data
        self.unsure = {}

    def unlink(self, name):
        self.unsure = {name: {self.files[name], None}}
        os.unlink(self.dir / name)
        del self.files[name]
        self.unsure = {}

    def rename(self, old, new):
        self.may_show(new, self.files[old])
        self.unsure = {old: {self.files[old], None}, new: {self.files.get(new), self.files[old]}}
        os.rename(self.dir / old, self.dir / new)
        self.files[new] = self.files.pop(old)
        self.unsure = {}

    def fresh(self):
        self.count += 1
        return f"f{self.count % 40}"

    def data(self):
        return self.random.randbytes(self.random.choice(SIZES))

    def step(self):
        what, names = self.random.random(), sorted(self.files)
        if what < 0.35 or len(names) < 3:
            self.write(self.fresh(), self.data())
        elif what < 0.55:
            self.write(self.random.choice(names), self.data())
        elif what < 0.7:
            self.unlink(self.random.choice(names))
        elif what < 0.8:
            self.write("save.tmp", self.data())
            self.rename("save.tmp", self.random.choice(names))
        elif what < 0.9:
            self.rename(self.random.choice(names), self.fresh())
        else:
            self.rename(*self.random.sample(names, 2))

    def run(self, stop):
        self.failure = None
        try:
            while not stop.is_set():
                self.step()
                if self.random.random() < 0.3:
                    time.sleep(self.random.random() * 0.05)
        except OSError as e:
            self.failure = e

    def settle(self):
        """After a restart: finds out what became of the call that was cut off; what was torn is written again."""
        for name, may in self.unsure.items():
            path = self.dir / name
            now = path.read_bytes() if path.exists() else None
            if now in may:
                if now is None:
                    self.files.pop(name, None)
                else:
                    self.files[name] = now
                if "torn" not in may:
                    continue
            assert "torn" in may, f"{path} is neither what it was nor what it was to be"
            self.unsure = {}
            self.write(name, self.data())
        self.unsure = {}

    def check(self):
        assert sorted(os.listdir(self.dir)) == sorted(self.files)
        for name, data in self.files.items():
            assert (self.dir / name).read_bytes() == data, f"{self.dir / name} differs"


class Saver:
    """Writes the shards of step_N, half of them under another name first, its `.metadata`, then `latest`, in place (DeepSpeed) or under another name first, and removes the step before, as
    training jobs do (torch.distributed.checkpoint, DeepSpeed); who reads the store must always find, whole, what these two name, but for a `.metadata` whose step is being removed."""

    def __init__(self, top, store, closed, seed):
        self.top, self.store, self.closed, self.step, self.bad = top, store, closed, 0, []
        self.random, self.in_place = random.Random(seed), False  # whether `latest` is being written so
        self.files, self.sure = {}, True
        self.steps, self.leaving = [], set()  # directories that are there; those whose removal was begun
        self.saved = {}  # marker's key and bytes -> what it names
        self.looks = {"latest": 0, ".metadata": 0}

    def run(self, stop):
        self.failure = None
        try:
            while not stop.is_set():
                self.save()
                time.sleep(0.1)
        except OSError as e:
            self.sure, self.failure = False, e

    def save(self):
        self.step += 1
        name = f"step_{self.step}"
        shards = {f"{name}/__{i}_0.distcp": os.urandom(random.choice(SIZES)) for i in range(4)}
        self.steps.append(name)
        os.mkdir(self.top / name)
        for (key, data), first in zip(shards.items(), ("", ".tmp", "", ".new")):  # the second is held back, the last one is not
            self.write(key, data, first)
        self.saved[f"{name}/.metadata", f"shards of {name}".encode()] = shards
        self.write(f"{name}/.metadata", f"shards of {name}".encode(), ".tmp")
        self.saved["latest", name.encode()] = {**shards, f"{name}/.metadata": self.files[f"{name}/.metadata"]}
        self.mark_latest(in_place=self.random.random() < 0.5)
        for old in self.steps[:-1]:
            self.remove(old)

    def write(self, key, data, first=""):
        """first: what its name ends with until it is whole."""
        self.closed.note(f"{key}{first}", data)
        (self.top / f"{key}{first}").write_bytes(data)
        if first:
            self.closed.note(key, data)
            os.rename(self.top / f"{key}{first}", self.top / key)
        self.files[key] = data

    def mark_latest(self, in_place):
        """In place: who reads the store goes on to see the one before until this one is whole."""
        self.in_place = in_place
        self.write("latest", f"step_{self.step}".encode(), "" if in_place else ".tmp")
        self.in_place = False

    def remove(self, name):
        """As `rm -rf` does, its marker first or last."""
        self.leaving.add(name)
        if (self.top / name).exists():
            for path in sorted((self.top / name).iterdir(), key=lambda path: path.name == ".metadata", reverse=random.random() < 0.5):
                path.unlink()
                self.files.pop(f"{name}/{path.name}", None)
            (self.top / name).rmdir()
        self.steps.remove(name)

    def settle(self):
        """A save that was cut off before its `.metadata` is taken away, as a job that starts again does; a removal goes on with what was still there."""
        if self.sure:
            return
        self.sure = True
        name = f"step_{self.step}"
        (self.top / "latest.tmp").unlink(missing_ok=True)
        if self.in_place:  # it may hold anything between the one before and the new one; all that the new one names is there
            self.mark_latest(in_place=True)
        latest, metadata = self.top / "latest", self.top / name / ".metadata"
        if latest.exists() and latest.read_text() == name:
            self.files["latest"] = name.encode()
        if metadata.exists():
            self.files[f"{name}/.metadata"] = metadata.read_bytes()
            (self.top / name / ".metadata.tmp").unlink(missing_ok=True)
        for old in self.leaving.intersection(self.steps):
            assert self.there(old) <= set(self.files), f"what was removed from {old} came back"
            self.remove(old)
        if f"{name}/.metadata" not in self.files:
            self.remove(name)
            for key in [k for k in self.files if k.startswith(name + "/")]:
                del self.files[key]

    def there(self, pattern):
        return {str(path.relative_to(self.top)) for path in self.top.glob(f"{pattern}/*")}

    def check(self):
        assert self.there("step_*") == {key for key in self.files if "/" in key}
        for key, data in self.files.items():
            assert (self.top / key).read_bytes() == data, f"{key} differs"

    def poll(self, stop):
        while not stop.is_set():
            for step in self.step, self.step - 1:
                self.look(f"step_{step}/.metadata", ".metadata")
            self.look("latest", "latest")
            time.sleep(0.005)

    def look(self, key, kind):
        """A marker that is there before and after is there all the time: none comes again."""
        data = self.upstream(key)
        if data is None:
            return
        wrong = [name for name, want in self.saved.get((key, data), {"what was never saved": b""}).items() if self.upstream(name) != want]
        if wrong and key.split("/")[0] not in self.leaving and self.upstream(key) == data:
            self.bad.append((key, data, wrong))
        self.looks[kind] += 1

    def upstream(self, key):
        try:
            return self.store.get(key)
        except FileNotFoundError:
            return None


def objects(store):
    return {k: v for k, v in store.list().items() if not k.endswith("/")}


@pytest.mark.parametrize("seed", [int(os.environ.get("SLUICE_SEED", "7"))])
def test_kill_under_load_loses_nothing_acknowledged(make_mount, store, seed):
    chance = random.Random(seed)
    store.keep_versions()
    m = make_mount(part_size="5M", fault=FAULTS)
    closed = Closed()
    saver = Saver(m.path, store, closed, seed)
    workers = [Worker(m.path, i, seed * 100 + i, closed) for i in range(3)]
    for w in workers:
        w.dir.mkdir()
    over = threading.Event()
    watcher = in_thread(lambda: saver.poll(over))
    for cycle in range(CYCLES):
        stop = threading.Event()
        threads = [threading.Thread(target=w.run, args=(stop,), daemon=True) for w in [*workers, saver]]
        for t in threads:
            t.start()
        time.sleep(chance.uniform(0.1, 2.5))
        closed.kills += 1
        of_worker = cycle % 3 == 1  # its files go on
        if of_worker:
            m.kill_worker()
            time.sleep(chance.uniform(0, 0.5))
        else:
            m.kill()
        stop.set()
        for t in threads: # before the dead mount is taken away: nobody writes into the folder below it
            t.join(30)
            assert not t.is_alive(), f"a program hangs after the kill in cycle {cycle}"
        if of_worker:
            failures = [w.failure for w in [*workers, saver] if w.failure]
            assert not failures, f"the death of a worker is to be noticed by nobody: {failures}"
        else:
            m.detach()
            m.mount()
        for w in [*workers, saver]:
            w.settle()
            w.check()
    for w in workers: # a name that is held back
        if "save.tmp" in w.files:
            w.unlink("save.tmp")
    want = {f"{w.dir.name}/{name}": data for w in workers for name, data in w.files.items()} | saver.files
    m.wait(timeout=180)
    over.set()
    watcher(30)
    assert not saver.bad, f"a marker named what was not there: {saver.bad[:5]}"
    assert all(saver.looks.values()), saver.looks
    assert m.status()["conflicts"] == 0
    assert "changed elsewhere" not in m.log(), "our own object was taken for somebody else's"
    assert sorted(objects(store)) == sorted(want)
    for key, data in want.items():
        assert store.get(key) == data, f"object {key} differs"
    print(f"\n{saver.step} steps, markers seen: {saver.looks}; versions in the store, and those that are there once more:", *closed.examine(store))
    for w in workers:
        w.check()
    assert eventually(lambda: store.uploads(empty=False) == [], 20), "multipart uploads were left behind"
    assert not [p for p in pathlib.Path(m.cache).rglob("*.tmp") if p.is_file()]
    for p in pathlib.Path(m.cache, "data").glob("*/*"):
        assert "user.sluice.intent" not in os.listxattr(p), f"{p} would come back without the database"
