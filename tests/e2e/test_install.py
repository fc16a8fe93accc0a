"""What `meson install` puts in place: the helper of mount(8), a line of fstab, the systemd unit."""
import pathlib
import shlex
import shutil
import stat
import subprocess

import pytest
from mounts import ROOT, sh

BUILD = ROOT / "build"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (BUILD / "build.ninja").exists(), reason="needs the plain build")]


@pytest.fixture
def installed(base):
    """find(name): where an installed file is."""
    root = base / "root"
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--skip-subprojects", "--destdir", root], check=True, timeout=60,
                   capture_output=True)

    def find(name):
        found = [p for p in root.rglob(name) if p.is_symlink() or p.is_file()]
        assert len(found) == 1, (name, found)
        return found[0]

    return find


@pytest.fixture
def lake(make_mount, base):
    """A mount not made yet, and the config file for it."""
    m = make_mount(start=False)
    m.conf = base / "lake.conf"
    m.conf.write_text(f"source = {m.source}\ncache-dir = {m.cache}\nlog-file = {m.log_path}\n" +
                      (f"endpoint-url = {m.store.endpoint}\n" if m.store.endpoint else ""))
    return m


def test_only_sluice_is_installed(installed, base):
    installed("sluice.1")
    installed("mount.sluice")
    files = [str(p.relative_to(base / "root")) for p in (base / "root").rglob("*") if not p.is_dir()]
    assert files and all("sluice" in f for f in files), files


def test_a_line_of_fstab_mounts(installed, lake, base):
    """mount(8) looks for its helper in fixed places: one of them is replaced, in a mount namespace of its own."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True, timeout=20).returncode != 0:
        pytest.skip("no mount namespaces here")
    fstab = base / "fstab"
    fstab.write_text(f"{lake.source} {lake.path} sluice _netdev,nofail,allow_other,noexec,config={lake.conf} 0 0\n")
    script = base / "script"
    script.write_text(f"""set -eu
        mount -t tmpfs none /usr/sbin
        [ -L /sbin ] || mount -t tmpfs none /sbin
        ln -s {installed("mount.sluice")} /sbin/mount.sluice
        trap '{installed("mount.sluice").resolve()} umount {lake.path}' EXIT
        mount -T {fstab} {lake.path}
        grep ' {lake.path} ' /proc/self/mountinfo
        echo hello >{lake.path}/f
        {installed("mount.sluice").resolve()} wait --timeout 30s {lake.path}
        """)
    done = subprocess.run(["unshare", "-m", "bash", script], capture_output=True, text=True, check=False, timeout=90, env=None if not lake.env
                          else {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **lake.env})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "noexec" in done.stdout and "fuse.sluice" in done.stdout
    assert lake.store.get("f") == b"hello\n"
    assert not lake.is_mounted()


def commands(unit, setting):
    """As systemd gives them to the shell of a test: '$$' is '$'."""
    return [line.split("=", 1)[1].replace("$$", "$") for line in unit.read_text().splitlines() if line.startswith(setting + "=")]


def test_the_unit_makes_directories_that_others_find(installed, base):
    """Whatever its UMask says."""
    unit, path = installed("sluice@.service"), base / "new" / "a b" / "lake"
    mask = commands(unit, "UMask")[0]
    for command in commands(unit, "ExecStartPre"):
        sh(f"umask {mask}; {command.replace('%f', shlex.quote(str(path)))}", cwd=base)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parents[1], path.parent, path)] == [0o755] * 3


def test_the_commands_of_the_unit_mount_and_unmount(installed, lake, base):
    unit = installed("sluice@.service")
    assert unit.parent.parts[-3:] == ("lib", "systemd", "system")
    prefix = str(base / "root")
    for setting, mounted in (("ExecStartPre", False), ("ExecStart", True), ("ExecStop", False), ("ExecStopPost", False)):
        for command in commands(unit, setting):
            words = command.lstrip("-").replace("%i", str(lake.conf)).replace("%f", str(lake.path)).split(" ", 1)
            program = prefix + words[0] if "sluice" in words[0] else words[0]
            sh(f"umask {commands(unit, 'UMask')[0]}; {program} {words[1]}", env={"PATH": "/usr/bin:/bin", "HOME": str(base), **lake.env}, timeout=60)
        assert lake.is_mounted() == mounted, setting
    if shutil.which("systemd-analyze"):
        one = pathlib.Path(unit.parent / "sluice@mnt-lake.service")
        one.symlink_to(unit.name)
        done = subprocess.run(["systemd-analyze", "--man=no", "verify", one], capture_output=True, text=True, check=False, timeout=30)
        wrong = [line for line in done.stderr.splitlines() if "sluice" in line and "is not executable" not in line]  # it is elsewhere here
        assert not wrong, wrong
