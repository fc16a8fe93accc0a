"""
All sequences of up to three operations on two names, each in a directory of its own, with the power cut after every step.

The sequences go step by step side by side, so that one cut tests them all. A sync makes durable what all of them did before; therefore those with syncs at
the same places are recorded together, apart from others. The names are held ones: the publisher, which syncs what it sends, leaves them alone. After a cut they get
free names, and what comes into the lake then is what a close left.
"""
import ctypes
import itertools
import os
import random

import power_run
import power_work

libc = ctypes.CDLL(None, use_errno=True)
HELD = ".tmp"
A, B = "a" + HELD, "b" + HELD
SIZE = 5000


class Case(power_work.Program):
    """A sequence in its directory. order: of the operations of all cases, as (case, number)."""

    def __init__(self, number, steps, both, top, note, order, **options):
        self.name, self.steps, self.order = f"c{number}", steps, order
        super().__init__(f"{top}/{self.name}", lambda text: note(self.count(text)), number, **options)
        self.both = both

    def count(self, text):
        phase, number = text.split()
        if phase == "b":
            self.order.append((self, int(number)))
        return f"{phase} {len(self.order) - 1}"

    def begin(self):
        os.mkdir(self.top)
        self.put(A, SIZE)
        if self.both:
            self.put(B, SIZE)

    # ---- operations: each as a program makes it, open and close included ----

    def in_file(self, path, change):
        if path not in self.names:
            self.create(path)
        else:
            self.open(path)
        change()
        self.close(path)

    def exchange(self):
        def call():
            if libc.renameat2(-100, os.fsencode(self.at(A)), -100, os.fsencode(self.at(B)), 2) < 0:
                raise OSError(ctypes.get_errno(), "renameat2")

        def change(number):
            self.names[A], self.names[B] = self.names[B], self.names[A]

        self.op(call, change)

    def sync_file(self, path):
        if path in self.fds:
            self.fsync(path)
            return
        self.fds[path] = os.open(self.at(path), os.O_RDONLY)
        self.fsync(path)
        os.close(self.fds.pop(path))


OPS = {
    "write": (lambda c: c.in_file(A, lambda: c.write(A, 100, c.data(600))), {A}),
    "append": (lambda c: c.in_file(A, lambda: c.append(A, c.data(4000))), {A}),
    "cut": (lambda c: c.in_file(A, lambda: c.truncate(A, 10)), {A}),
    "again": (lambda c: c.put(A, SIZE), {A}),
    "other": (lambda c: c.in_file(B, lambda: c.append(B, c.data(SIZE))), set()),
    "begin": (lambda c: (c.open(A), c.append(A, c.data(3000))), {A}),
    "end": (lambda c: c.close(A), {A}),
    "rename": (lambda c: c.rename(A, B), {A}),
    "back": (lambda c: c.rename(B, A), {B}),
    "exchange": (lambda c: c.exchange(), {A, B}),
    "unlink": (lambda c: c.unlink(A), {A}),
    "unlink-other": (lambda c: c.unlink(B), {B}),
    "link": (lambda c: c.link(A, B), {A}),
    "mkdir": (lambda c: c.mkdir(B), set()),
    "rmdir": (lambda c: c.rmdir(B), {B}),
    "fsync": (lambda c: c.sync_file(A), {A}),
    "fsync-other": (lambda c: c.sync_file(B), {B}),
    "fsync-dir": (lambda c: c.fsync_dir(), set()),
}


def is_sync(op):
    return op.startswith("fsync")


def possible(steps, both):
    """Can this sequence run? What the two names are, a file (a number), "d" or None, and whether a is open."""
    names, is_open = {A: 1, B: 2 if both else None}, False
    for op in steps:
        a, b = names[A], names[B]
        if any(not names[x] for x in OPS[op][1]) or "d" in (a, b) and op not in ("rmdir", "write", "append", "cut", "again", "fsync", "fsync-dir", "unlink", "mkdir"):
            return False
        if op == "rmdir" and b != "d" or op == "link" and b or op == "mkdir" and b or op == "end" and not is_open:
            return False
        if is_open and op not in ("end", "fsync", "fsync-dir", "other", "fsync-other", "unlink-other", "link", "mkdir", "rmdir"):
            return False
        if a == b and op in ("rename", "back"):
            continue
        names = {"rename": {A: None, B: a}, "back": {A: b, B: None}, "exchange": {A: b, B: a}, "unlink": {A: None, B: b}, "other": {A: a, B: b or 3},
                 "unlink-other": {A: a, B: None}, "link": {A: a, B: a}, "mkdir": {A: a, B: "d"}, "rmdir": {A: a, B: None}}.get(op, names)
        is_open = op == "begin" or (is_open and op != "end")
    return True


def all_cases():
    """(places of syncs) -> [(steps, whether b exists at the beginning)]"""
    found = {}
    for length in (1, 2, 3):
        for steps in itertools.product(OPS, repeat=length):
            for both in (False, True):
                if possible(steps, both):
                    found.setdefault(tuple(is_sync(op) for op in steps), []).append((steps, both))
    return found


class Cases:
    """The cases of one recording, in the place of one program."""

    def __init__(self, chosen):
        self.chosen, self.ends = chosen, []

    def program(self, top, note, seed, **options):
        self.order, self.note = [], note
        options.pop("wait")
        self.cases = [Case(i, steps, both, top, note, self.order, **options) for i, (steps, both) in enumerate(self.chosen)]
        random.Random(seed).shuffle(self.cases)
        return self

    def __call__(self, program):
        for case in self.cases:
            case.begin()
        fd = os.open(os.path.dirname(self.cases[0].top), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        for case in self.cases:  # so that "a" is there, whole, after any cut
            case.open(A)
            case.fsync(A)
            case.close(A)
            if case.both:
                case.sync_file(B)
        self.ends.append(len(self.order) - 1)
        for step in range(max(len(c.steps) for c in self.cases)):
            for case in self.cases:
                if step < len(case.steps):
                    OPS[case.steps[step]][0](case)
            self.ends.append(len(self.order) - 1)
        for case in self.cases:
            for fd in case.fds.values():
                os.close(fd)
            case.fds = {}
        self.fds = {}


def check(cut, cases, m):
    """All cases after a cut."""
    durable = {(case, n) for case in cases.cases for n in case.durable}
    last = max((i for i in range(cut.ended + 1) if cases.order[i] in durable), default=-1)
    floor, begun, ended = {}, {}, {}
    for i, (case, n) in enumerate(cases.order[:cut.begun + 1]):
        begun[case] = n
        if i <= cut.ended:
            ended[case] = n
        if i <= last:
            floor[case] = n
    found, failures, questions = cut.read_tree(m), [], []
    of_case = {}
    for path, data in found.items():
        name, _, rest = path.partition("/")
        if rest:
            of_case.setdefault(name, {})[rest] = data
    cases.begun = begun
    for case in cases.cases:
        mine = of_case.get(case.name, {})
        checked = power_run.Check(case, range(floor.get(case, -1), begun[case] + 1), ended.get(case, -1))
        try:
            checked.names(mine)
            questions += [(f"{case.name}/{p}", right, what) for p, right, what in checked.questions]
        except AssertionError as e:
            failures.append(f"{case.name} {' '.join(case.steps)} both={case.both}: {e}")
    try:
        power_run.ask_states(m, questions)
    except AssertionError as e:
        failures.append(str(e))
    return failures


def check_lake(cut, cases, m):
    """Every file that is held after a cut gets a name that is not, and is published."""
    for path, data in cut.read_tree(m).items():
        if data is not None:
            os.rename(m.path / path, m.path / path.removesuffix(HELD))
    cut.drain(m, 0)
    failures, seen = [], 0
    for case in cases.cases:
        rules = power_run.LakeRules(case)
        for name in (A, B):
            key = f"{case.name}/{name.removesuffix(HELD)}"
            if not (cut.r.lake / key).is_file():
                continue
            seen += 1
            data = (cut.r.lake / key).read_bytes()
            if data not in {right for node in rules.nodes_at.get(name, []) for right in node.closed_bytes(cases.begun[case])}:
                failures.append(f"{key} {' '.join(case.steps)} both={case.both}: published, and never closed like this: {power_run.describe(data)}")
    if not seen:
        failures.append("nothing was published")
    try:
        cut.check_published(m)
    except AssertionError as e:
        failures.append(str(e))
    return failures


def record_and_check(top, name, chosen, styles, published, seed):
    """The failures of one group of cases. published: the styles after which their files are published too."""
    cases = Cases(chosen)
    recording = power_run.Recording(top, name, cases, seed, fault="op=put,action=error:-EIO", passthrough="off")
    recording.make_program = cases.program
    recording.record()
    cut, failures = power_run.Cut(recording), []
    for end in cases.ends[1:]:
        point = next(i for i, e in enumerate(recording.events) if e.kind == "note" and e.a == f"e {end}") + 1
        cut.play(point)
        for style in styles:
            cut.build(style, seed)
            m = recording.mount(2)
            m.mount()
            try:
                wrong = check(cut, cases, m)
                if style in published:
                    wrong += check_lake(cut, cases, m)
                failures += [f"{name}, step {cases.ends.index(end)}, {style}: {f}" for f in wrong]
            finally:
                m.kill9()
    return failures
