"""All sequences of up to three operations on two names, with the power cut after every step (power_cases.py)."""
import os
import pathlib
import shutil
import tempfile

import power_cases
import power_run
import pytest
from power_run import mounts

GROUPS = power_cases.all_cases()
STYLES = power_run.replay.STYLES if mounts.NIGHT else ("worst", "mixed")
SEED = int(os.environ.get("SLUICE_SEED", "1"))


def name_of(group):
    return "".join("s" if sync else "n" for sync in group)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", sorted(GROUPS), ids=name_of)
def test_power_cases(group):
    """group: at which steps its sequences sync."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="sluice-power.", dir=power_run.room()))
    try:
        failures = power_cases.record_and_check(top, name_of(group), GROUPS[group], STYLES, SEED)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    assert not failures, f"{len(failures)} of {len(GROUPS[group])}\n" + "\n".join(failures[:10])
