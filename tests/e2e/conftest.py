"""Fixtures: store (file or ceph by SLUICE_STORE), mount (a mounted Mount), make_mount (more of them, or with options)."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import mounts  # noqa: E402
import stores  # noqa: E402


def pytest_configure(config):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background has them ignored,
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)             # and so have the programs it starts
    config.addinivalue_line("markers", "slow: left out by the quick run")
    config.addinivalue_line("markers", "gateway: ends the gateway, so that no other test may use it meanwhile")
    config.addinivalue_line("markers", "ceph: needs the gateway, skipped on the file store")
    config.addinivalue_line("markers", "directory: needs a directory as store, skipped on the gateway: suite e2e-directory")


def pytest_collection_modifyitems(config, items):
    kind = os.environ.get("SLUICE_STORE", "file")
    no_fuse = not os.access("/dev/fuse", os.W_OK)
    for item in items:
        if no_fuse:
            item.add_marker(pytest.mark.skip(reason="/dev/fuse is not there"))
        if kind != "ceph" and item.get_closest_marker("ceph"):
            item.add_marker(pytest.mark.skip(reason="needs the gateway"))
        if kind == "ceph" and item.get_closest_marker("directory"):
            item.add_marker(pytest.mark.skip(reason="needs a directory as store"))


@pytest.fixture
def base():
    where = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e."))
    where.chmod(0o755)
    yield where
    inside = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    left = [m for m in inside if m.startswith(str(where) + "/")]
    for m in reversed(left):
        subprocess.run(["umount", "-l", m], timeout=20, check=False)
    shutil.rmtree(where, ignore_errors=True)
    assert not left, f"a mount was left behind: {left}"


@pytest.fixture
def store(base, request):
    kind = stores.STORES[os.environ.get("SLUICE_STORE", "file")]
    with kind.used(alone=bool(request.node.get_closest_marker("gateway"))):
        made = kind(base / "lake")
        yield made
        made.remove()


@pytest.fixture
def make_mount(store, base):
    """make_mount(name="a", source=None, start=True, **options): a Mount of its own, ended at the end of the test."""
    made = []

    def make(name="m", source=None, start=True, **options):
        m = mounts.Mount(store, base / name, source, **options)
        made.append(m)
        return m.mount() if start else m

    yield make
    problems = []
    for m in reversed(made):
        try:
            m.finish()
        except AssertionError as e:
            problems.append(str(e))
    assert not problems, "\n".join(problems)


@pytest.fixture
def mount(make_mount):
    return make_mount()
