"""For all suites of pytest: which tests of a run are run at all.

SLUICE_DEADLINE, in seconds since 1970: no test begins after it; those are skipped. SLUICE_TURN=N: the order of the files begins at another one for each N, so that
with a deadline it is not always the same tests that have no time. SLUICE_SHARE=N: of N tests that follow each other one is run, which one by the turn.
"""
import os
import time

import pytest

DEADLINE = float(os.environ.get("SLUICE_DEADLINE") or 0)
TURN = int(os.environ.get("SLUICE_TURN") or 0)
SHARE = int(os.environ.get("SLUICE_SHARE") or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    others = [item for i, item in enumerate(items) if i % SHARE != TURN % SHARE]
    config.hook.pytest_deselected(items=others)
    files = list(dict.fromkeys(item.path for item in items))
    first = TURN % max(len(files), 1)
    rank = {path: i for i, path in enumerate(files[first:] + files[:first])}
    items[:] = sorted((item for item in items if item not in set(others)), key=lambda item: rank[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if DEADLINE and time.time() > DEADLINE:
        pytest.skip("no time left: SLUICE_DEADLINE")
