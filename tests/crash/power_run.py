"""Recordings, cuts, and what must hold after a cut."""
import ctypes
import json
import os
import pathlib
import random
import shutil
import sys

import power_replay as replay
import power_work

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import mounts  # noqa: E402

PRELOAD = os.path.abspath(os.environ.get("SLUICE_POWER_RECORD", str(mounts.ROOT / "build/tests/crash/libpower_record.so")))
LOG_BYTES = 1 << 30  # sparse
OWN = (".sluice-tmp/", ".sluice-probe/")  # the file store's parts, the probe's objects
BOOT = "{:08x}-0000-4000-8000-000000000000"
SCALE = 5  # how fast the clock of the mounts runs
MOVED = "moved"
KEPT = {"quarantined", "open"}  # states in which a file is never published as it is


def room():
    """In memory if that keeps attributes: syncs cost nothing there, and mean nothing here."""
    probe = pathlib.Path("/dev/shm/sluice-power-probe")
    try:
        probe.touch()
        os.setxattr(probe, "user.probe", b"1")
        return "/dev/shm"
    except OSError:
        return None
    finally:
        probe.unlink(missing_ok=True)


class LocalStore:
    """The file store, in what mounts.Mount wants of one."""

    endpoint = None

    def __init__(self, path):
        self.path, self.source = path, f"file://{path}"

    def env(self):
        return {}


class Recording:
    """One run of a program, from the first start of its daemon to the end of its log."""

    def __init__(self, base, name, work, seed=1, fault=None, **options):
        """fault: of the store while it is recorded, not afterwards."""
        self.base = pathlib.Path(base) / name
        self.name, self.work, self.seed, self.fault = name, work, seed, fault
        self.cache, self.lake = self.base / "cache", self.base / "lake"
        self.options = dict(options, cache_size="64M", metadata_ttl="1s", negative_ttl="1s", prefetch="off")
        self.lake.mkdir(parents=True)
        self.events, self.program = [], None
        self.make_program = power_work.Program

    def mount(self, boot, **env):
        """Its log, so what is known of its worker, is base/log."""
        m = mounts.Mount(LocalStore(self.lake), self.base, **self.options)
        m.program = mounts.POINTS
        m.env.update({"LD_PRELOAD": PRELOAD, "POWER_LAKE": str(self.lake), "POWER_BOOT_ID": BOOT.format(boot), "SLUICE_CLOCK_SCALE": str(SCALE)},
                     **{k: str(v) for k, v in env.items()})
        return m

    def make_log(self, lib, name):
        path = self.base / name
        path.unlink(missing_ok=True)
        lib.power_create(os.fsencode(path), ctypes.c_uint64(LOG_BYTES))
        return path

    def snapshots(self, lib):
        """A function that logs what the kernel wrote into the cache files since its last call; None: it writes none."""
        seen = {}

        def look():
            for path in (self.cache / "data").glob("*/*"):
                try:
                    st = path.stat()
                except FileNotFoundError:  # it went since
                    continue
                if seen.get(path) != (st.st_ino, st.st_mtime_ns, st.st_size):
                    seen[path] = (st.st_ino, st.st_mtime_ns, st.st_size)
                    lib.power_snapshot(os.fsencode(path))

        return look if self.options.get("passthrough") != "off" else None

    def record(self):
        lib = ctypes.CDLL(PRELOAD)
        log = self.make_log(lib, "power.log")
        self.first_lake = replay.Disk(str(self.lake)).load()
        look = self.snapshots(lib)
        m = self.mount(1, POWER_LOG=log, POWER_CACHE=self.cache, **({"POWER_PASSED": 1} if look else {}))
        m.mount(fault=self.fault)
        try:
            self.program = self.make_program(m.path, lambda text: lib.power_note(text.encode()), self.seed,
                                              close=self.options.get("close", "buffered"), passed=look or (lambda: None), lake=self.lake,
                                              wait=None if self.fault and "put,action=error" in self.fault else m.wait)
            self.work(self.program)
            pids = m.pids()
            lib.power_lock()  # whoever changes something waits
            self.check_log(log)
            mounts.kill_all(pids)
            lib.power_unlock()
        finally:
            m.detach()
        return self

    def check_log(self, log):
        """All was seen if the log's end is what the folders hold."""
        self.events = replay.read_log(log)
        cut = Cut(self)
        cut.play(len(self.events))
        wrong = [w for disk in (cut.cache, cut.lake) for w in differences(disk)]
        assert not wrong, f"the recorder missed something: {wrong}"
        strange = [e.a for e in self.events if e.kind == "strange"]
        assert not strange, f"the recorder does not know: {strange}"


def differences(disk):
    """Paths that differ between what was recorded and what is there. RocksDB writes LOG with stdio, unseen."""
    there = {}
    for top, dirs, files in os.walk(disk.root):
        for name in dirs:
            there[disk.below(f"{top}/{name}")] = None
        for name in files:
            if not name.startswith("LOG") or name == "LOCK":
                there[disk.below(f"{top}/{name}")] = pathlib.Path(top, name).read_bytes()
    seen = {p: None if v is None else bytes(v[0]) for p, v in disk.now().items()}
    return [p for p in there.keys() | seen.keys() if p not in there or p not in seen or there[p] != seen[p]]


# ---- the lake ----

class LakeRules:
    """What holds for the objects of a lake at every moment. begun: the last operation that had begun when the daemon that publishes got its files."""

    def __init__(self, program):
        self.nodes_at = {}  # path -> nodes that ever had it
        for names in program.history:
            for path, node in names.items():
                if node and node not in self.nodes_at.setdefault(path, []):
                    self.nodes_at[path].append(node)

    def may_hold(self, key, begun):
        held = [node for path, nodes in self.nodes_at.items() if path.endswith(".tmp") for node in nodes] if key == MOVED else []
        return {data for node in self.nodes_at.get(key, []) + held for data in node.closed_bytes(begun)}

    def check(self, objects, begun):
        for key, data in objects.items():
            if not key.startswith(OWN) and data not in self.may_hold(key, begun):
                raise AssertionError(f"published, and never closed like this: {key}, {describe(data)}")
        step = objects.get("latest", b"").decode(errors="replace")
        if step:
            for i in range(3):
                assert f"{step}/shard{i}" in objects, f"latest names {step}, whose shard{i} is not there"


def describe(data):
    zeros = len(data) - len(data.rstrip(b"\0"))
    return f"{len(data)} bytes, the last {zeros} of them zeros" if zeros else f"{len(data)} bytes, beginning with {bytes(data[:8]).hex()}"


def objects_of(disk):
    return {p: bytes(f.now()) for p, f in disk.names.items() if f and not p.startswith(OWN)}


def changes_lake(e, lake):
    """The event gives an object its name or takes it."""
    if e.kind not in ("rename", "unlink"):
        return None
    path = lake.below(e.b or e.a)
    return path if path and not path.startswith(OWN) else None


# ---- names and bytes after a cut ----

class Check:
    """What a program may find: its names as after any operation of `possible`, the last of which had begun, and the bytes that it was promised until `ended`."""

    def __init__(self, program, possible, ended):
        self.program, self.possible, self.ended = program, possible, ended
        self.begun = possible[-1]
        self.questions = []  # (path, whether a state is right, what is wrong otherwise)

    def names(self, found):
        """found: path -> bytes, or None for a directory."""
        after = [self.program.history[n] if n >= 0 else {} for n in self.possible]
        for path in found.keys() | {name for names in after for name in names}:
            kinds = {"none" if path not in names else "dir" if names[path] is None else "file" for names in after}
            kind = "none" if path not in found else "dir" if found[path] is None else "file"
            assert kind in kinds, f"{path} is {kind}, not {kinds}, after operations {self.possible}"
        for node in self.program.nodes:
            places = [{path for path, n in names.items() if n is node} for names in after]
            if all(places):
                self.node(node, set().union(*places) & found.keys(), found)
        self.saved(found)
        for path, data in found.items():
            if data is not None and not any(data in node.closed_bytes(self.begun) for node in self.program.nodes):
                self.questions.append((path, lambda s, path=path: s in KEPT or (s == "held" and path.endswith(".tmp")),
                                       f"{describe(data)} that no close left there"))

    def node(self, node, places, found):
        assert places, "a file has none of the names it may have"
        must = node.must_hold(self.begun, self.ended)
        if must is None:
            return
        data, whole = must
        right = [path for path in places if found[path] is not None and (found[path] == data if whole else found[path].startswith(data))]
        assert right, f"synced bytes are lost: {sorted(places)} hold {[describe(found[p]) for p in places]}, not {describe(data)}"
        if whole and any(n <= self.ended for n in node.closed):
            self.questions += [(path, lambda s: s != "quarantined", "synced bytes") for path in right]

    def saved(self, found):
        """What was renamed over a file that was safe is there whole, or that file is."""
        for path, safe in self.program.saved.items():
            if safe > self.ended:
                continue
            nodes = {names[path] for names in self.program.history[safe:self.begun + 1]}
            whole = set().union(*(node.closed_bytes(self.begun) for node in nodes))
            assert found[path] in whole, f"{path} is neither what was renamed over it nor what was there: {describe(found[path])}"
            self.questions.append((path, lambda s: s != "quarantined", "a whole version"))

    def states(self, m):
        ask_states(m, self.questions)


def ask_states(m, questions):
    paths = sorted({path for path, _, _ in questions})
    states = {}
    for i in range(0, len(paths), 200):
        out = mounts.run("info", "--json", *[m.path / path for path in paths[i:i + 200]]).stdout
        states.update(zip(paths[i:i + 200], [json.loads(line)["state"] for line in out.splitlines()]))
    for path, right, what in questions:
        assert right(states[path]), f"{path} is {states[path]} with {what}"


# ---- one cut ----

class Cut:
    """A recording played up to some event."""

    def __init__(self, recording):
        self.r = recording
        self.cache = replay.Disk(str(recording.cache))
        self.lake = replay.Disk(str(recording.lake))
        first = recording.first_lake
        self.lake.names, self.lake.inodes = dict(first.names), dict(first.inodes)
        self.at, self.begun, self.ended = 0, -1, -1

    def play(self, until, rules=None):
        while self.at < until:
            e = self.r.events[self.at]
            self.at += 1
            if e.kind == "note":
                phase, number = e.a.split()
                if phase == "b":
                    self.begun = int(number)
                elif phase == "e":
                    self.ended = int(number)
            elif not self.cache.play(e) and self.lake.play(e) and rules and changes_lake(e, self.lake):
                rules.check(objects_of(self.lake), self.begun)

    def build(self, style, seed):
        """What survives, in the place of the recorded folders."""
        r = self.r
        for folder in (r.cache, r.lake):
            shutil.rmtree(folder, ignore_errors=True)
        replay.build(str(r.cache), self.cache.after_cut(style, seed))
        replay.build(str(r.lake), self.lake.now(), self.lake.folder_xattrs)
        (r.base / "log").unlink(missing_ok=True)

    def come_up(self, style, seed, rules):
        """The machine comes up again; everything that must hold is looked at."""
        r = self.r
        self.build(style, seed)
        lake = replay.Disk(str(r.lake)).load()
        log = r.make_log(ctypes.CDLL(PRELOAD), "after.log")
        m = r.mount(2, POWER_LOG=log)
        m.mount()
        try:
            self.check_tree(m)
            self.drain(m, seed)
            status = m.status()
            assert status["conflicts"] == 0, f"{status['conflicts']} conflicts"
            self.check_published(m)
        except (AssertionError, OSError) as e:
            raise AssertionError(f"{e}\n{self.what_is_left(m)}\n{m.log()[-1500:]}") from e
        finally:
            m.finish()
        self.check_lake(lake, log, rules)

    # ---- names and bytes ----

    def read_tree(self, m):
        found = {}
        for top, dirs, files in os.walk(m.path):
            for name in dirs:
                found[os.path.relpath(f"{top}/{name}", m.path)] = None
            for name in files:
                path = os.path.relpath(f"{top}/{name}", m.path)
                found[path] = pathlib.Path(top, name).read_bytes()
        return found

    def check_tree(self, m):
        p = self.r.program
        floor = max((n for n in p.durable if n <= self.ended), default=-1)
        check = Check(p, range(floor, self.begun + 1), self.ended)
        check.names(self.read_tree(m))
        check.states(m)

    # ---- publishing ----

    def drain(self, m, seed):
        """All that can be published. What a save left under a held name is taken away or, which a user may do too, given another name."""
        for path in m.path.glob("*.tmp"):
            path.rename(m.path / MOVED) if seed % 2 else path.unlink()
        done = mounts.run("wait", "--timeout", f"{60 * SCALE}s", m.path, timeout=90, check=False)
        assert done.returncode in (0, 1), f"wait: {done.returncode} {done.stderr} {m.log()[-500:]}"

    def what_is_left(self, m):
        """Of a recording that is not made twice alike: each file that is not published."""
        files = [f"{top}/{name}" for top, _, names in os.walk(m.path) for name in names]
        told = [mounts.run("info", "--json", file, check=False).stdout.strip() for file in files]
        return "\n".join(line for line in told if '"state":"clean"' not in line.replace(" ", ""))

    def check_published(self, m):
        objects = {p: (self.r.lake / p).read_bytes() for p in self.lake_files()}
        for path, data in self.read_tree(m).items():
            if data is None or objects.get(path) == data:
                continue
            state = m.info(path)["state"]
            assert state in KEPT | {"parked", "sealed"}, f"{path} is {state} and not published"

    def lake_files(self):
        for top, _, files in os.walk(self.r.lake):
            for name in files:
                path = os.path.relpath(f"{top}/{name}", self.r.lake)
                if not path.startswith(OWN):
                    yield path

    def check_lake(self, lake, log, rules):
        again = {}
        rules.check(objects_of(lake), self.begun)
        for e in replay.read_log(log):
            path = changes_lake(e, lake)
            old = path and lake.names.get(path)
            old = bytes(old.now()) if old else None
            lake.play(e)
            if path and e.kind == "rename":
                made = lake.names[path]  # None: a folder, with an object in it
                if made and old == bytes(made.now()):
                    again[path] = again.get(path, 0) + 1
                rules.check(objects_of(lake), self.begun)
        assert all(n <= 1 for n in again.values()), f"published again and again: {again}"


def cut_points(recording, count, seed):
    """Where to cut: after random events, half of them next to one by which something reaches the disk or the lake."""
    rng = random.Random(seed)
    events = recording.events
    edges = [i for i, e in enumerate(events) if e.kind in ("fsync", "fdatasync", "rename", "unlink", "note")]
    points = [rng.choice(edges) + rng.choice((0, 1)) if rng.random() < 0.5 else rng.randrange(len(events) + 1) for _ in range(count)]
    return sorted(points)


def after_removals(recording):
    """Where to cut: after each data file of the cache that went."""
    data = f"{recording.cache}/data/"
    return [i + 1 for i, e in enumerate(recording.events) if e.kind == "unlink" and e.a.startswith(data)]


def run_cuts(recording, count, seed):
    """Cuts a recording count times; the failures, as text."""
    return cut_at(recording, cut_points(recording, count, seed), replay.STYLES, seed)


def cut_at(recording, points, styles, seed):
    """Cuts a recording after these events, in these styles in turn."""
    rules = LakeRules(recording.program)
    cut, failures = Cut(recording), []
    for i, point in enumerate(points):
        cut.play(point, rules)
        style = styles[i % len(styles)]
        try:
            cut.come_up(style, seed + i, rules)
        except (AssertionError, OSError) as e:
            failures.append(f"{recording.name}: cut after event {point} of {len(recording.events)}, {style}, seed {seed + i}: {e}")
    return failures


if __name__ == "__main__":
    # BASE PROGRAM CUTS SEED [OPTION=VALUE...]: by hand
    options = dict(word.split("=", 1) for word in sys.argv[5:])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    made = Recording(sys.argv[1], "r", getattr(power_work, "work_" + sys.argv[2]), int(sys.argv[4]), **options).record()
    print(f"{len(made.events)} events, {len(made.program.history)} operations")
    wrong = run_cuts(made, int(sys.argv[3]), int(sys.argv[4]))
    print(*wrong, f"{sys.argv[3]} cuts, {len(wrong)} failures", sep="\n")
