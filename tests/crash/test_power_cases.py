"""All sequences of up to three operations on two names, with the power cut after every step (power_cases.py)."""
import os
import pathlib
import shutil
import tempfile

import power_cases
import power_run
import pytest
from power_run import mounts

MOST = 350  # sequences in one test
STYLES = power_run.replay.STYLES if mounts.NIGHT else ("worst", "mixed")
PUBLISHED = STYLES if mounts.NIGHT else ("mixed",)  # which leaves files torn
SEED = int(os.environ.get("SLUICE_SEED", "1"))


def parts():
    """(the places of syncs and a number, some of the sequences with them there)"""
    for group, cases in sorted(power_cases.all_cases().items()):
        for i in range(0, len(cases), MOST):
            yield "".join("s" if sync else "n" for sync in group) + str(i // MOST), cases[i:i + MOST]


PARTS = dict(parts())


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PARTS)
def test_power_cases(name):
    top = pathlib.Path(tempfile.mkdtemp(prefix="sluice-power.", dir=power_run.room()))
    try:
        failures = power_cases.record_and_check(top, name, PARTS[name], STYLES, PUBLISHED, SEED)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    assert not failures, f"{len(failures)} of {len(PARTS[name])}\n" + "\n".join(failures[:10])
