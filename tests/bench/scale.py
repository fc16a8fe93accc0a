#!/usr/bin/python3
"""Measures what a lake of many names costs: sync against a raw parallel LIST, mount, ls, find, stat against ext4, memory and database.

    tests/bench/scale.py                         1,000 directories of 1,000 names, 1,000,000 in one, 10,000,000 in the database
    tests/bench/scale.py --dirs 100 --files 100 --flat 10000 --fill 100000
    tests/bench/scale.py --source s3://bucket    (S3_ENDPOINT, AWS_*) the first two parts on an empty bucket, beside the same tree on ext4; --peers: s3fs and rclone as well

Prints a Markdown table. As root, with the caches of the kernel dropped before each cold row. What is compared with ext4 is the same tree, in the same order, by the same
program. Figures mean something on a machine that does nothing else; CPU seconds of the daemon and of the lister stand beside the wall clock for others.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE_BIN", str(ROOT / "build/tools/sluice"))
TOOL = os.environ.get("SLUICE_SCALE_TOOL", str(ROOT / "build/tests/bench/bench_scale"))
TICK = os.sysconf("SC_CLK_TCK")


def run(*args, timeout=7200):
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"scale.py: {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(*args):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(run(TOOL, *args))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        pass  # the rows are warm then, for both sides


class Mount:
    def __init__(self, source, base):
        self.source, self.path, self.cache, self.log = source, base / "mnt", base / "cache", base / "log"
        self.path.mkdir(exist_ok=True)
        self.cache.mkdir(mode=0o700, exist_ok=True)

    def mount(self, *options):
        began = time.monotonic()
        if os.environ.get("S3_ENDPOINT") and self.source.startswith("s3:"):
            options = (*options, "--endpoint-url", os.environ["S3_ENDPOINT"])
        run(SLUICE, "mount", self.source, self.path, "--cache-dir", self.cache, "--log-file", self.log, "--metadata-ttl", "1d", "--free-space", "1M", *options)
        return time.monotonic() - began

    def umount(self):
        run(SLUICE, "umount", self.path)

    def status(self):
        return json.loads(run(SLUICE, "status", "--json", self.path))

    def requests(self):
        return sum(self.status()["requests"].values())

    def cpu(self):
        words = pathlib.Path(f"/proc/{self.status()['pid']}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / TICK

    def memory(self, what="VmRSS"):
        text = pathlib.Path(f"/proc/{self.status()['pid']}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(what)) / 1024

    def database(self):
        return sum(f.stat().st_size for f in (self.cache / "meta").rglob("*") if f.is_file())

    def sync(self, *options):
        cpu = self.cpu()
        lines = run(SLUICE, "sync", "--json", *options, self.path).splitlines()
        last = json.loads(lines[-1])
        last["seconds"], last["cpu"] = last["elapsed_ms"] / 1000, self.cpu() - cpu
        return last


ROWS = []


def row(what, value, base="", ratio=None, bar="", met=None):
    """bar: what is asked for; a number is of the ratio. met: whether it is, where that is no ratio."""
    if ratio is not None and bar:
        met = ratio >= float(bar)
    ROWS.append((what, value, base, "" if ratio is None else f"{ratio:.2f}", bar, "" if met is None else "yes" if met else "**no**"))
    print("|", " | ".join(ROWS[-1]), "|", flush=True)


def memory_row(what, m):
    """What the daemon has now and had at most."""
    now, most = m.memory(), m.memory("VmHWM")
    row(f"{what}, most", f"{now:.0f} MiB, {most:.0f} MiB", bar="300 MiB", met=most <= 300)


def rate(names, seconds):
    return f"{names / max(seconds, 1e-9):,.0f}/s"


def both(names, r):
    return f"{rate(names, r['seconds'])} ({r['cpu'] * 1e6 / max(names, 1):.1f} µs CPU each)"


def measure_sync(name, m, count, threads):
    raw = tool("list", m.source, threads)
    if raw["names"] != count:
        sys.exit(f"scale.py: {m.source} holds {raw['names']} objects, not {count}")
    took = m.mount()
    first = m.sync("-p", str(threads))
    row(f"{name}: full sync, beside raw LIST by {threads} threads", both(count, first), both(count, raw), raw["seconds"] / max(first["seconds"], 1e-3), "0.80")
    again = m.sync("-p", str(threads))
    row(f"{name}: sync again, nothing changed ({again['changed']} directories written)", both(count, again), both(count, raw),
        raw["seconds"] / max(again["seconds"], 1e-3))
    row(f"{name}: memory of the daemon, most", f"{m.memory('VmHWM'):.0f} MiB")
    m.umount()
    row(f"{name}: database", f"{m.database() / count:.0f} bytes a name")
    row(f"{name}: first mount, second mount", f"{took:.2f} s, {m.mount():.2f} s")


def measure_walk(name, m, native):
    """m is mounted and knows everything; native: the same tree on ext4."""
    before = m.requests()
    drop_caches()
    ours = tool("walk", m.path)
    asked = m.requests() - before
    row(f"{name}: requests of the second mount for find and stat of all", str(asked), bar="0", met=asked == 0)
    drop_caches()
    base = tool("walk", native)
    for what, key, bar in (("find, cold", "find", "0.50"), ("find again", "find_again", ""), ("stat again, cached by the kernel", "stat_again", "0.95")):
        row(f"{name}: {what}", rate(ours["names"], ours[key]), rate(base["names"], base[key]), base[key] / max(ours[key], 1e-6), bar)
    first = ours["names"] / max(ours["stat_first"], 1e-9)
    row(f"{name}: stat of all after readdir, first touch", f"{first:,.0f}/s", rate(base["names"], base["stat_first"]), bar="100,000/s", met=first >= 100_000)
    row(f"{name}: memory of the daemon after that", f"{m.memory():.0f} MiB")


def make_lake(a, lake, dirs, files):
    """The source to mount: the tree at lake, which is on ext4, or the same in the bucket."""
    lake.mkdir()
    tool("make", lake, dirs, files)
    if not a.source:
        return f"file://{lake}"
    source = f"{a.source}/{lake.name}"
    tool("put", source, dirs, files, 16)
    return source


def part_dirs(a, base):
    count, name = a.dirs * a.files, f"{a.dirs:,} x {a.files:,}"
    native = base / "lake"
    source = make_lake(a, native, a.dirs, a.files)
    m = Mount(source, base)
    try:
        measure_sync(name, m, count, a.threads)
        measure_walk(name, m, native)
    finally:
        m.umount()
    if a.peers:
        peers(source, name, base, count)
    shutil.rmtree(native)
    shutil.rmtree(m.cache)


def part_flat(a, base):
    lake = base / "flat"
    source = make_lake(a, lake, 1, a.flat)
    m = Mount(source, base)
    name = f"{a.flat:,} in one"
    m.mount()
    first = tool("first", m.path / "d000000")
    row(f"{name}: ls -f of a directory never listed: first name", f"{first['first']:.3f} s", bar="1 s", met=first["first"] <= 1)
    m.umount()
    shutil.rmtree(m.cache)
    m = Mount(source, base)
    try:
        measure_sync(name, m, a.flat, a.threads)
        first = tool("first", m.path / "d000000")
        native = tool("first", lake / "d000000")
        row(f"{name}: ls -f, known: first name, all", f"{first['first']:.4f} s, {first['all']:.2f} s", f"{native['first']:.4f} s, {native['all']:.2f} s",
            native["all"] / max(first["all"], 1e-6))
        measure_walk(name, m, lake)
    finally:
        m.umount()
    if a.peers:
        peers(source, name, base, a.flat)
    shutil.rmtree(lake)
    shutil.rmtree(m.cache)


def part_fill(a, base):
    """The store is empty: what is measured comes from the database alone."""
    lake = base / "empty"
    lake.mkdir()
    m = Mount(f"file://{lake}", base)
    m.mount()
    m.umount()
    dirs = max(a.fill // 1000, 1)
    files = a.fill // dirs
    filled = tool("fill", m.cache, m.source, dirs, files)
    count, name = filled["names"], f"{filled['names']:,} in the database"
    row(f"{name}: bytes a name", f"{m.database() / count:.0f}")
    drop_caches()
    took = m.mount()
    row(f"{name}: mount", f"{took:.2f} s", bar="2 s", met=took <= 2)
    try:
        memory_row(f"{name}: memory after mount", m)
        before = m.requests()
        share = max(dirs // 10, 1)
        began = time.monotonic()
        seen = sum(len(os.listdir(m.path / f"d{d:06}")) for d in range(0, dirs, dirs // share))
        row(f"{name}: ls of every tenth directory ({m.requests() - before} requests)", rate(seen, time.monotonic() - began))
        memory_row(f"{name}: memory after that", m)
        began = time.monotonic()
        seen = int(run("sh", "-c", 'find "$1" -type f -size -2 | wc -l', "sh", m.path))
        row(f"{name}: find with stat of all ({m.requests() - before} requests)", rate(seen, time.monotonic() - began))
        memory_row(f"{name}: memory after that", m)
        shown = len(run(SLUICE, "checkpoints", "--json", m.path).splitlines())
        memory_row(f"{name}: memory after sluice checkpoints ({shown} lines)", m)
    finally:
        m.umount()
    shutil.rmtree(m.cache)


def peers(source, name, base, count):
    """find of all by those that can; each lists anew."""
    path, endpoint = source.removeprefix("s3://"), os.environ["S3_ENDPOINT"]
    at = base / "peer"
    at.mkdir(exist_ok=True)
    os.environ.pop("AWS_CA_BUNDLE", None)  # rclone's own transport refuses it
    commands = {"s3fs": ["s3fs", path.replace("/", ":/", 1), at, "-o", f"url={endpoint},use_path_request_style,max_stat_cache_size={2 * count},multireq_max=64,enable_noobj_cache"],
                "rclone": ["rclone", "mount", f":s3,provider=Ceph,env_auth,endpoint='{endpoint}':{path}", at, "--daemon", "--dir-cache-time", "1h"]}
    for who, command in commands.items():
        if not shutil.which(who):
            row(f"{name}: find by {who}", "is not here")
            continue
        run(*command)
        try:
            r = tool("walk", at)
            found = "" if r["names"] >= count else f"only {r['names']:,} names found: "
            row(f"{name}: {who}: find first, find again, stat after it", found + ", ".join(rate(r["names"], r[k]) for k in ("find", "find_again", "stat_again")))
        finally:
            run("umount", "-l", at)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dirs", type=int, default=1000, help="directories of the first part, 0: leave it out")
    p.add_argument("--files", type=int, default=1000, help="names in each")
    p.add_argument("--flat", type=int, default=1_000_000, help="names in one directory, 0: leave it out")
    p.add_argument("--fill", type=int, default=10_000_000, help="names made in the database, 0: leave it out")
    p.add_argument("--threads", type=int, default=8)
    p.add_argument("--source", help="an empty bucket for the first two parts")
    p.add_argument("--peers", action="store_true", help="with --source: s3fs and rclone as well")
    p.add_argument("--dir", default=None, help="where lake and cache are made")
    a = p.parse_args()
    base = pathlib.Path(tempfile.mkdtemp(prefix="sluice-scale.", dir=a.dir))
    print("| what | Sluice | beside | ratio | bar | met |\n|---|---|---|---|---|---|")
    try:
        for wanted, part in ((a.dirs, part_dirs), (a.flat, part_flat), (a.fill, part_fill)):
            if wanted:
                part(a, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


main()
