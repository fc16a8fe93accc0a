"""A cache on an overlay, as in a container's layer: the kernel passes files through to one, not to an overlay on another. Bytes are right on both."""
import os

import pytest
from mounts import MIB, eventually, sh
from test_passthrough import blob, io


@pytest.fixture
def overlay(base):
    """overlay(name, lower=None): a folder that is an overlay, over the one named."""
    made = []

    def make(name, lower=None):
        for part in ("lower", "upper", "work", "at"):
            (base / name / part).mkdir(parents=True)
        at = base / name / "at"
        dirs = f"lowerdir={lower or base / name / 'lower'},upperdir={base / name / 'upper'},workdir={base / name / 'work'}"
        if sh(f"mount -t overlay none -o {dirs} {at}", check=False).returncode:
            pytest.skip("no overlays here")
        made.append(at)
        return at
    yield make
    for at in reversed(made):
        sh(f"umount -l {at}", check=False)


def check_bytes(m, store, mode):
    """Files of others and our own, new and changed, over a remount."""
    old, new = blob("old", 3 * MIB), blob("new", 20 * MIB)
    store.put("old", old)
    with open(m.path / "old", "rb") as f:
        assert f.read() == old
        assert io(m, "old") == mode
    (m.path / "new").write_bytes(new)
    assert eventually(lambda: io(m, "old") == "closed")
    with open(m.path / "old", "r+b") as f:
        f.seek(MIB)
        f.write(b"changed")
    m.wait()
    want = old[:MIB] + b"changed" + old[MIB + 7:]
    assert store.get("new") == new and store.get("old") == want
    m.remount()
    assert (m.path / "new").read_bytes() == new and (m.path / "old").read_bytes() == want
    assert m.status()["downloaded_bytes"] == 0
    with open(m.path / "new", "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert io(m, "new") == mode and f.read() == new


@pytest.fixture
def passes(make_mount):
    """Whether the kernel passes files through to a plain disk."""
    return make_mount("plain").status()["passthrough"]


def test_on_an_overlay_files_are_passed_through(passes, make_mount, store, overlay):
    m = make_mount("m", start=False)
    m.options["cache_dir"] = m.cache = overlay("one") / "cache"
    m.mount()
    check_bytes(m, store, "passthrough" if passes else "cached")
    assert m.status()["passthrough"] == passes


def test_on_an_overlay_over_another_all_goes_through_the_daemon_and_that_is_said(passes, make_mount, store, overlay):
    m = make_mount("m", start=False)
    m.options["cache_dir"] = m.cache = overlay("two", overlay("one")) / "cache"
    m.mount()
    check_bytes(m, store, "cached")
    status = m.status()
    assert not status["passthrough"]
    assert not passes or "stacked file system" in status["passthrough_off_because"]
