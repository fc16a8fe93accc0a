"""Two mounts of one bucket at once, against what a program on each may count on: a history of all opens, reads and closes on both, and of what stood in the bucket.

A version says who it is and what it was made from, in its first block; what its other blocks hold is known too, so that a mixture of two versions is none. A writer opens a file once,
reads it whole, and changes it by that same descriptor: what it replaces is what it read. Then
- what is read is a version whole, or the read fails; no other mount sees one before its writer closed it, or one that lost;
- no mount goes back to a version that the one it saw was made from, nor does the bucket;
- what was published is seen by every open that begins later than --metadata-ttl after it (and a generous while);
- each version that was closed is in the line of what stands in the bucket at the end, or in that of a conflict that was reported: whole, or, where files are not fetched when they are
  opened, with the word that part of it was replaced in the store before it was here.
"""
import bisect
import collections
import errno
import hashlib
import json
import os
import random
import threading
import time

from mounts import ask, eventually, in_thread, run

BLOCK = 4096
WHILE_S = 20  # beside --metadata-ttl, on a machine that does much else
MAY_FAIL = {errno.ESTALE, errno.EIO}  # what was read is in the store no more; what was to be published at the close lost

Read = collections.namedtuple("Read", "side name began ended version")


def noise(version, block):
    return hashlib.sha256(f"{version}/{block}".encode()).digest() * (BLOCK // 32)


def head(version, parent):
    return f"{version} {parent or '-'}\n".encode().ljust(BLOCK, b".")


class Version:
    def __init__(self, name, side, number, parent, data):
        self.name, self.side, self.number, self.parent, self.data = name, side, number, parent, data
        self.closing = self.closed = None  # from when on others may see it; when its close returned without an error

    def line(self):
        """The version and all that it was made from."""
        v = self
        while v:
            yield v
            v = v.parent

    def __repr__(self):
        return f"{self.name}:{self.number}{self.side}<{self.parent.number if self.parent else '-'}"


class Side:
    """One mount, with what its programs saw."""

    def __init__(self, mount, tag):
        self.mount, self.tag = mount, tag
        self.locks = collections.defaultdict(threading.Lock)  # by name: programs of one node see each other's unfinished writes
        self.seen = {}  # name -> latest version that an open showed
        self.reads = []

    def ask(self, **request):
        return ask(self.mount.path, request)


class Race:
    """steps by so many threads on either side. check() at the end."""

    def __init__(self, a, b, store, seed, files, whole):
        self.sides, self.store, self.seed, self.ttl, self.whole = (Side(a, "a"), Side(b, "b")), store, seed, 1, whole
        self.names = [f"d/f{i}" for i in range(files)]
        self.mu = threading.Lock()
        self.versions = {}  # number -> Version
        self.lost = []      # versions that conflicts held
        self.partial = set()  # (side, name): a conflict said that not all bytes of it are here
        self.refused = set()  # their close said that they were not published
        self.upstream = collections.defaultdict(list)  # name -> versions in the order in which they stood there
        self.count = collections.Counter()
        self.over = threading.Event()

    # ---- versions ----

    def make(self, name, side, parent, rng):
        """A version made from another one: another head, and one block more, another one, or all other ones."""
        with self.mu:
            number = len(self.versions) + 1
            v = self.versions[number] = Version(name, side.tag, number, parent, b"")
        blocks = [parent.data[i:i + BLOCK] for i in range(0, len(parent.data), BLOCK)] if parent else []
        how = rng.choice(("all", "one", "more")) if blocks else "all"
        if how == "all":
            blocks = [b""] + [noise(number, i) for i in range(rng.choice((1, 1, 3, 20, 100, 800)))]
        elif how == "one":
            i = rng.randrange(1, len(blocks))
            blocks[i] = noise(number, i)
        else:
            blocks.append(noise(number, len(blocks)))
        blocks[0] = head(number, parent.number if parent else None)
        v.data = b"".join(blocks)
        return v, how

    def version_of(self, name, data):
        number = int(data[:BLOCK].split()[0]) if data[:1].isdigit() else 0
        v = self.versions.get(number)
        assert v and v.name == name and v.data == data, \
            f"{name}: {len(data)} bytes that are no version: head {data[:20]!r}, blocks {[self.block_of(data, i) for i in range(len(data) // BLOCK)]}"
        return v

    def block_of(self, data, i):
        block = data[i * BLOCK:(i + 1) * BLOCK]
        return next((n for n in self.versions if block == noise(n, i)), "?")

    # ---- steps ----

    def read(self, side, name, rng):
        """By a descriptor, in pieces, with others' publishes in between."""
        began = time.monotonic()
        slow = rng.random() < 0.3
        try:
            fd = os.open(side.mount.path / name, os.O_RDONLY)
        except FileNotFoundError:
            self.saw(side, Read(side.tag, name, began, time.monotonic(), None))
            return
        except OSError as e:
            self.may_fail(e)
            return
        try:
            parts = [b""]
            while True:
                part = os.read(fd, BLOCK * (16 if slow else 256))
                if not part:
                    break
                parts.append(part)
                if slow:
                    time.sleep(0.01)
        except OSError as e:
            self.may_fail(e)
            return
        finally:
            os.close(fd)
        self.saw(side, Read(side.tag, name, began, time.monotonic(), self.version_of(name, b"".join(parts))))

    def may_fail(self, e):
        assert e.errno in MAY_FAIL, e
        self.count["failed"] += 1

    def saw(self, side, r):
        """Under the lock of the name on this side."""
        v, before = r.version, side.seen.get(r.name)
        if v:
            assert v.side == side.tag or (v.closing and v.closing <= r.ended), f"{r} is seen before its writer closed it"
        assert not before or v, f"{r}: nothing is there, {before} was"
        assert not before or v is before or v not in before.line(), f"{r} after {before}"
        if v:
            side.seen[r.name] = v
        side.reads.append(r)
        self.count["reads"] += 1

    def write(self, side, name, rng):
        began = time.monotonic()
        try:
            fd = os.open(side.mount.path / name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            self.may_fail(e)
            return
        v = None
        try:
            try:
                data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
            except OSError as e:
                self.may_fail(e)
                return
            parent = self.version_of(name, data) if data else None
            if parent:
                self.saw(side, Read(side.tag, name, began, time.monotonic(), parent))
            v, how = self.make(name, side, parent, rng)
            if not self.change(fd, v, how, rng):
                return
            v.closing = time.monotonic()
        finally:
            try:
                os.close(fd)
                if v and v.closing:
                    v.closed = time.monotonic()
            except OSError as e:
                assert v and e.errno in MAY_FAIL, e
                v.closed = time.monotonic()  # kept all the same
                self.refused.add(v)
        side.seen[name] = v
        self.count["writes"] += 1

    def change(self, fd, v, how, rng):
        """False: it was refused before anything was changed."""
        changed = False
        try:
            for at in self.blocks_to_write(fd, v, how, rng):
                os.pwrite(fd, v.data[at:at + BLOCK], at)
                changed = True
        except OSError as e:
            assert not changed, f"{v} was refused half way: {e}"
            self.may_fail(e)
            return False
        return True

    @staticmethod
    def blocks_to_write(fd, v, how, rng):
        """Where blocks are to be written."""
        if how == "all":
            os.ftruncate(fd, 0)
        blocks = list(range(0, len(v.data), BLOCK))
        rng.shuffle(blocks)
        for at in blocks:
            if how == "all" or not v.parent or v.data[at:at + BLOCK] != v.parent.data[at:at + BLOCK]:
                yield at

    def step(self, side, rng):
        name = rng.choice(self.names)
        with side.locks[name]:
            (self.write if rng.random() < 0.3 else self.read)(side, name, rng)

    # ---- conflicts ----

    def resolve(self, side):
        """Gives a name to what lost: what it holds is looked at."""
        n = 0
        for c in side.ask(verb="conflicts", action="list", paths=[""]) or []:
            if c["state"] != "conflict":
                continue
            n += 1
            to = f"lost/{side.tag}{c['id']}"
            with side.locks[c["path"]]:
                done = run("conflicts", "save-as", f"#{c['id']}", side.mount.path / to, cwd=side.mount.path, check=False)
                if done.returncode != 0:  # a part of a file was changed, and the rest was replaced before it was here
                    assert "part of its bytes is not here" in done.stderr and not self.whole, done.stderr
                    run("conflicts", "keep-theirs", f"#{c['id']}", cwd=side.mount.path)
                    self.partial.add((side.tag, c["path"]))
                    self.count["partial"] += 1
                    side.seen.pop(c["path"], None)
                    continue
                before = side.seen.get(c["path"])
                v = self.version_of(c["path"], (side.mount.path / to).read_bytes())
                assert v.side == side.tag, f"{v} is a conflict of {side.tag}"
                self.lost.append(v)
                if before is v:
                    del side.seen[c["path"]]
        return n

    def watch_conflicts(self, side):
        while not self.over.wait(0.3):
            self.resolve(side)

    # ---- the bucket ----

    def look(self, name):
        try:
            data = self.store.get(name)
        except FileNotFoundError:
            assert not self.upstream[name], f"{name} is in the bucket no more"
            return None
        v = self.version_of(name, data)
        line = self.upstream[name]
        if not line or line[-1] is not v:
            assert v.closing, f"{v} is in the bucket and was not closed"
            assert not line or line[-1] in v.line(), f"{line[-1]} was replaced by {v}, which was not made from it"
            line.append(v)
        return v

    def watch_bucket(self):
        while not self.over.is_set():
            for name in self.names:
                self.look(name)
            time.sleep(0.01)

    # ---- all ----

    def run(self, steps, threads, seconds):
        until = time.monotonic() + seconds
        left = [steps]

        def work(side, seed):
            rng = random.Random(seed)
            try:
                while time.monotonic() < until and not self.over.is_set():
                    with self.mu:
                        left[0] -= 1
                        if left[0] < 0:
                            return
                    self.step(side, rng)
            except BaseException:
                self.over.set()
                raise

        workers = [in_thread(lambda side=side, i=i: work(side, f"{self.seed}/{side.tag}{i}")) for side in self.sides for i in range(threads)]
        watchers = [in_thread(self.watch_bucket)] + [in_thread(lambda side=side: self.watch_conflicts(side)) for side in self.sides]
        problems = []
        for join in workers:
            problems += self.failure(join, seconds + 120)
        self.over.set()
        for join in watchers:
            problems += self.failure(join, 120)
        assert not problems, "\n".join(problems)

    @staticmethod
    def failure(join, seconds):
        try:
            join(seconds)
            return []
        except BaseException as e:
            return [f"{type(e).__name__}: {e}"]

    def settled(self):
        n = sum(self.resolve(side) for side in self.sides)
        states = [side.mount.status() for side in self.sides]
        return n == 0 and not any(s["conflicts"] or s["dirty_files"] for s in states)

    def check(self):
        assert eventually(self.settled, 120, 0.5), [side.mount.status() for side in self.sides]
        last = {name: self.look(name) for name in self.names}
        for name, v in last.items():
            for side in self.sides:
                assert eventually(lambda side=side, name=name, v=v: self.shows(side, name) is v, self.ttl + WHILE_S), \
                    f"{side.tag} shows {self.shows(side, name)}, in the bucket is {v}"
        self.check_nothing_lost(last)
        self.check_losers_unseen()
        self.check_close_to_open()
        assert self.count["writes"] > 10 and self.count["failed"] * 4 < self.count["reads"], f"that proves nothing: {self.count}"
        print(json.dumps(self.count), {"lost": len(self.lost), "versions": len(self.versions)}, flush=True)

    def shows(self, side, name):
        try:
            return self.version_of(name, (side.mount.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as e:
            assert e.errno in MAY_FAIL, e
            return None

    def check_nothing_lost(self, last):
        kept = {id(w) for v in [*last.values(), *self.lost] if v for w in v.line()}
        gone = [v for v in self.versions.values() if v.closed and id(v) not in kept and (v.side, v.name) not in self.partial]
        assert not gone, f"neither in the bucket nor a conflict: {gone[:10]} of {len(gone)}; in the bucket: {last}; conflicts: {self.lost}"

    def check_losers_unseen(self):
        losers = {id(v) for v in self.lost}
        for line in self.upstream.values():
            assert not [v for v in line if id(v) in losers], line
        for side in self.sides:
            seen = [r for r in side.reads if r.version and id(r.version) in losers and r.version.side != side.tag]
            assert not seen, f"what lost was seen elsewhere: {seen[:5]}"

    def check_close_to_open(self):
        """Who saw a version that another node made knows that it was published by then."""
        for name in self.names:
            reads = sorted((r for side in self.sides for r in side.reads if r.name == name), key=lambda r: r.began)
            began = [r.began for r in reads]
            for r in reads:
                if not r.version or r.version.side == r.side:
                    continue
                older = {id(v) for v in r.version.line()} - {id(r.version)}
                for late in reads[bisect.bisect(began, r.ended + self.ttl + WHILE_S):]:
                    assert late.version and id(late.version) not in older, f"{late} begins long after {r}"
