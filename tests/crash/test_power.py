"""The power is cut at random moments of recorded runs: power_record.c records, power_replay.py says what may be left, power_run.py what must hold then."""
import os
import pathlib
import shutil
import tempfile

import power_run
import power_work
import pytest
from power_run import mounts

SEED = int(os.environ.get("SLUICE_SEED", "1"))
CUTS = 20 if mounts.NIGHT else 1  # times the numbers below
# name, program, cuts, options of the mount
SLOW = "prob=0.5,action=delay:20ms"
DOWN = "op=put,action=error:-EIO"
LOSSY = "op=put,prob=0.3,action=lost:-EIO;op=copy,prob=0.3,action=lost:-EIO;op=delete,prob=0.3,action=lost:-EIO"
RECORDINGS = [
    ("files", power_work.work_files, 40, {"passthrough": "off"}),
    ("files-passed", power_work.work_files, 40, {}),
    ("files-local", power_work.work_files, 30, {"close": "local"}),
    ("files-remote", power_work.work_files, 20, {"close": "remote", "passthrough": "off"}),
    ("files-slow", power_work.work_files, 25, {"passthrough": "off", "fault": SLOW}),
    ("files-down", power_work.work_files, 40, {"fault": DOWN}),
    ("files-lossy", power_work.work_files, 30, {"passthrough": "off", "fault": LOSSY}),
    ("saves", power_work.work_saves, 25, {"passthrough": "off"}),
    ("saves-passed", power_work.work_saves, 25, {}),
    ("saves-slow", power_work.work_saves, 25, {"fault": SLOW}),
    ("saves-down", power_work.work_saves, 25, {"passthrough": "off", "fault": DOWN}),
    ("synced", power_work.work_synced, 40, {"passthrough": "off", "fault": DOWN}),
    ("synced-passed", power_work.work_synced, 40, {"fault": DOWN}),
]


def recorded(name, work, number, options, cut):
    """The failures of cut(recording)."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="sluice-power.", dir=power_run.room()))
    try:
        return cut(power_run.Recording(top, name, work, SEED + number, **options).record())
    finally:
        shutil.rmtree(top, ignore_errors=True)


def cut_after_removals(recording):
    points = power_run.after_removals(recording)
    assert len(points) >= 10, "hardly a data file went"
    return power_run.cut_at(recording, points, ["names"], SEED)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
@pytest.mark.timeout(600)
def test_power_cut_when_a_published_file_went():
    """What is on the disk then is that the file is gone, and not that its object was made, nor that its name was removed."""
    failures = recorded("removed", power_work.work_removed, 0, {"passthrough": "off"}, cut_after_removals)
    assert not failures, "\n".join(failures[:10])


def cut_beside_renames(recording):
    """After each data file that went, and after other moments."""
    removals = power_run.after_removals(recording)
    assert len(removals) >= 10, "hardly a data file went"
    points = sorted(removals + power_run.cut_points(recording, 20 * CUTS, SEED))
    return power_run.cut_at(recording, points, power_run.replay.STYLES, SEED)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
@pytest.mark.timeout(3600 if mounts.NIGHT else 600)
@pytest.mark.parametrize("options", [{"passthrough": "off"}, {}, {"fault": SLOW}], ids=["read-through", "passed", "slow"])
def test_power_cut_beside_a_rename_over_a_file(options):
    """The name leads to a whole version then: what was there, or what came, though nobody synced that."""
    failures = recorded("replaced", power_work.work_replaced, 0, options, cut_beside_renames)
    assert not failures, "\n".join(failures[:10])


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="/dev/fuse is not there")
@pytest.mark.timeout(3600 if mounts.NIGHT else 600)
@pytest.mark.parametrize("number", range(len(RECORDINGS)), ids=[row[0] for row in RECORDINGS])
def test_power_cut(number):
    name, work, cuts, options = RECORDINGS[number]
    failures = recorded(name, work, number, options, lambda made: power_run.run_cuts(made, cuts * CUTS, SEED + number))
    assert not failures, "\n".join(failures[:10])
