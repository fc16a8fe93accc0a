"""Random steps against a reference tree (model_tree.py) and against arrays of bytes (model_bytes.py), with faults, kills, remounts and eviction in between.

They run when SLUICE_MODEL_STEPS says how many steps of either: 10,000 take minutes, a million hours. SLUICE_MODEL_SEED says where they come from (1; a night takes
another one each time); a failure prints the seed and the steps that are left of it, and leaves log and cache in SLUICE_MODEL_KEEP=DIR. Needs a build with test points.
"""
import itertools
import os
import random

import model
import model_bytes
import model_tree
import pytest
from mounts import NIGHT, POINTS

STEPS = int(os.environ.get("SLUICE_MODEL_STEPS", 0))
SEED = int(os.environ.get("SLUICE_MODEL_SEED", random.randrange(1 << 32) if NIGHT else 1))
PER_RUN = 1000
SHRINK_SECONDS = int(os.environ.get("SLUICE_MODEL_SHRINK", 3600 if NIGHT else 150))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.skipif(STEPS == 0, reason="asked for by SLUICE_MODEL_STEPS")]


@pytest.fixture
def run_of(make_mount, base, store):
    """run_of(kind, options): makes runs of that kind on mounts of their own over stores of their own."""
    if not os.access(POINTS, os.X_OK):
        pytest.skip(f"{POINTS} is not built (-Dtest_points=true)")
    number = itertools.count()

    def make(kind, options):
        n = next(number)
        own = type(store)(base / f"lake{n}")
        m = make_mount(f"m{n}", source=own.source, start=False)
        m.store, m.program = own, POINTS
        return kind(m, own, options)
    return lambda kind, options: lambda: make(kind, options)


def runs(steps):
    """(seed, steps) of each run."""
    for i in range(max(1, -(-steps // PER_RUN))):
        yield SEED + i, min(PER_RUN, steps - i * PER_RUN)


def test_tree_and_bucket_are_what_the_reference_is(run_of, store):
    for seed, steps in runs(STEPS):
        options = model_tree.options_of(seed, store)
        print("seed", seed, options, flush=True)
        model.check(run_of(model_tree.Tree, options), model_tree.steps_of(seed, steps), SHRINK_SECONDS)


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_bytes_are_what_was_stored_last(run_of, store, passthrough):
    for seed, steps in runs(-(-STEPS // 2)):
        options = model_bytes.options_of(seed, store, passthrough)
        print("seed", seed, options, flush=True)
        model.check(run_of(model_bytes.Bytes, options), model_bytes.steps_of(seed, steps), SHRINK_SECONDS)
