"""Random steps against a reference tree (model.py), and random bytes in one file against an array, with faults, kills, remounts and eviction in between.

They run when SLUICE_MODEL_STEPS says how many steps: 10,000 take minutes, a million hours. SLUICE_MODEL_SEED says where they come from (1; a night takes
another one each time); a failure prints the seed and the steps that are left of it.
"""
import ctypes
import itertools
import mmap
import os
import random

import model
import pytest
from mounts import MIB, NIGHT, run

STEPS = int(os.environ.get("SLUICE_MODEL_STEPS", 0))
SEED = int(os.environ.get("SLUICE_MODEL_SEED", random.randrange(1 << 32) if NIGHT else 1))
PER_RUN = 2500
SHRINK_SECONDS = 3600 if NIGHT else 150
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.skipif(STEPS == 0, reason="asked for by SLUICE_MODEL_STEPS")]


def end(m, store):
    """What the run said counts, not whether it ends well."""
    if m.is_mounted():
        run("umount", m.path, check=False)
    if m.is_mounted():
        m.abort()
        m.detach()
    store.remove()


@pytest.fixture
def make_run(make_mount, base, store):
    """Runs on mounts of their own over stores of their own, one at a time."""
    number = itertools.count()

    def make():
        n = next(number)
        own = type(store)(base / f"lake{n}")
        m = make_mount(f"m{n}", source=own.source, start=False, part_size="5M")
        m.store = own
        m.mount()
        made = model.Run(m, own, base / f"reference{n}")
        finish = made.finish

        def finish_all():
            finish()
            end(m, own)
        made.finish = finish_all
        return made
    return make


def test_tree_and_bucket_are_what_the_reference_is(make_run):
    for seed in range(SEED, SEED + max(1, STEPS // PER_RUN)):
        print("seed", seed, flush=True)
        steps = model.steps_of(seed, min(STEPS, PER_RUN)) + [("settle",), ("new_cache",)]
        model.check(make_run, steps, SHRINK_SECONDS)


# ---- one file ----


class OneFile(model.Run):
    """The same for one file's bytes: every way to change and to read them, against a bytearray."""

    LIMIT = 12 * MIB

    def __init__(self, mount, store, reference):
        super().__init__(mount, store, reference)
        self.path = self.ours.at("f")
        self.want = bytearray()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)

    def finish(self):
        os.close(self.fd)

    def reopen(self):
        self.fd = os.open(self.path, os.O_RDWR)

    def do(self, step):
        getattr(self, "on_" + step[0])(*step[1:])

    def equal(self, off, got):
        want = bytes(self.want[off:off + len(got)])
        if got != want:
            at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
            raise model.Diverged(f"bytes differ from {off + at} on: {brief_bytes(got[at:])}, should be {brief_bytes(want[at:])}")

    def size_is(self):
        size = os.fstat(self.fd).st_size
        if size != len(self.want):
            raise model.Diverged(f"size is {size}, should be {len(self.want)}")

    def grow(self, size):
        self.want.extend(bytes(max(0, size - len(self.want))))

    def on_write(self, off, n, seed):
        data = model.noise(n, seed)
        assert os.pwrite(self.fd, data, off) == n
        if n:
            self.grow(off)
            self.want[off:off + n] = data

    def on_read(self, off, n):
        got = os.pread(self.fd, n, off)
        if len(got) != max(0, min(n, len(self.want) - off)):
            raise model.Diverged(f"read of {n} at {off} gives {len(got)}, the file has {len(self.want)}")
        self.equal(off, got)

    def on_map(self, off, n, seed):
        if off + n > len(self.want) or n == 0:
            return
        with mmap.mmap(self.fd, len(self.want)) as m:
            self.equal(off, m[off:off + n])
            if seed:
                m[off:off + n] = self.want[off:off + n] = model.noise(n, seed)

    def on_truncate(self, size):
        os.ftruncate(self.fd, size)
        del self.want[size:]
        self.grow(size)

    def on_punch(self, mode, off, n):
        if model.LIBC.fallocate(self.fd, mode, ctypes.c_long(off), ctypes.c_long(n)) < 0:
            return
        if mode & (model.PUNCH | model.ZERO):
            end = min(off + n, len(self.want))
            self.want[off:end] = bytes(max(0, end - off))
        if not mode & model.KEEP:
            self.grow(off + n)

    def on_copy(self, src, dst, n):
        n = min(n, len(self.want) - src)
        if n <= 0 or abs(src - dst) < n:
            return
        done = os.copy_file_range(self.fd, self.fd, n, src, dst)
        data = self.want[src:src + done]
        self.grow(dst)
        self.want[dst:dst + done] = data

    def on_sync(self):
        os.fsync(self.fd)

    def on_reopen(self):
        os.close(self.fd)
        self.reopen()
        self.size_is()

    def on_check(self):
        self.size_is()
        self.equal(0, os.pread(self.fd, len(self.want) + 1, 0))

    def on_evict(self):
        os.close(self.fd)
        self.published()
        if self.store.get("f") != bytes(self.want):
            raise model.Diverged("the object is not the file")
        run("evict", self.path, check=False)
        self.reopen()

    def on_remount(self):
        os.close(self.fd)
        self.mount.remount()
        self.reopen()
        self.on_check()

    def on_kill(self):
        self.mount.kill9()
        os.close(self.fd)
        self.mount.mount()
        self.reopen()
        self.on_check()


def brief_bytes(data):
    return f"{bytes(data[:8]).hex()}... ({len(data)})"


def a_byte_step(rng):
    limit = OneFile.LIMIT
    spot = rng.randrange(limit) if rng.random() < 0.5 else rng.randrange(limit >> 12) << 12
    n = rng.choice((1, 100, 4096, 65536, 65537, 200000)) if rng.random() < 0.9 else rng.randrange(3 * MIB)
    n = min(n, limit - spot)
    seed = rng.randrange(1, 1 << 30)
    makers = [(20, ("write", spot, n, seed)), (25, ("read", spot, n)), (8, ("map", spot, n, seed)), (5, ("map", spot, n, 0)), (5, ("truncate", spot)),
              (5, ("punch", model.KEEP | model.PUNCH, spot, max(n, 1))), (2, ("punch", model.ZERO, spot, max(n, 1))), (2, ("punch", 0, spot, max(n, 1))),
              (4, ("copy", rng.randrange(limit), spot, n)), (2, ("sync",)), (6, ("reopen",)), (2, ("check",)), (1.5, ("evict",)), (0.4, ("remount",)), (0.3, ("kill",))]
    return rng.choices([s for _, s in makers], [w for w, _ in makers])[0]


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_bytes_of_one_file_are_what_was_stored_last(make_mount, base, store, passthrough):
    number = itertools.count()

    def make():
        n = next(number)
        own = type(store)(base / f"lake{n}")
        m = make_mount(f"m{n}", source=own.source, passthrough=passthrough, part_size="5M", open_fill="1M")
        made = OneFile(m, own, base / f"reference{n}")
        finish = made.finish

        def finish_all():
            finish()
            end(m, own)
        made.finish = finish_all
        return made

    for seed in range(SEED, SEED + max(1, STEPS // 10000)):
        print("seed", seed, flush=True)
        rng = random.Random(seed)
        model.check(make, [a_byte_step(rng) for _ in range(min(STEPS, 2000))] + [("evict",), ("check",)], SHRINK_SECONDS)
