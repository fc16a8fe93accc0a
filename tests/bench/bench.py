#!/usr/bin/python3
"""Runs the rows of rows.py and writes the report. Started by run.sh, which brings the gateway and pins the processes."""
import argparse
import datetime
import fnmatch
import os
import pathlib
import signal
import sys

import cases
import pages
import report
from lake import Lake
from measure import GIB, SLUICE, run, say
from rows import FULL, QUICK, all_rows
from sides import DAEMON, PASSTHROUGH, SIDES

DELAY_MS = 30


class Bench:
    def __init__(self, args, work):
        self.sizes = QUICK if args.quick else FULL
        self.runs = args.runs or (1 if args.quick else 5)
        self.only = args.only.split(",") if args.only else list(SIDES)
        patterns = args.rows.split(",")
        self.todo = [r for r in all_rows(self.sizes) if any(fnmatch.fnmatch(r.name, p) for p in patterns)]
        if not self.todo or set(self.only) - set(SIDES):
            raise SystemExit(f"no such row or side; sides: {' '.join(SIDES)}; rows: {' '.join(r.name for r in all_rows(FULL))}")
        self.skipped = {r.name: why for r in self.todo if (why := missing(r))}
        self.todo = [r for r in self.todo if r.name not in self.skipped]
        self.results, self.when = report.earlier(self, pathlib.Path(args.out)) if args.resume else ({}, {})
        self.rows = [r for r in all_rows(self.sizes) if r in self.todo or r.name in self.results or r.name in self.skipped]
        self.todo = [r for r in self.todo if not self.complete(r)]
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
        self.when.update({r.name: now for r in self.todo})
        self.results = {r.name: {} if r in self.todo else self.results.get(r.name, {}) for r in self.rows}
        self.lake = Lake(self.sizes, work, args.far_port, args.server_cpus)
        self.sides = {name: SIDES[name](self.lake, work) for name in self.only}
        self.names = 0

    def new_name(self, side):
        """A file name that no side used before."""
        self.names += 1
        return f"written-{side.name}-{self.names}"

    def complete(self, row):
        """Whether an earlier run measured the row on every side that takes part, as often, without a failure."""
        sides = [name for name in self.only if (name in row.sides if SIDES[name].filesystem else row.raw)]
        samples = [self.results.get(row.name, {}).get(name, []) for name in sides]
        return all(len(s) >= self.runs and not any("error" in one for one in s) for s in samples)

    def groups(self):
        found = {}
        for row in self.todo:
            found.setdefault(row.group(), []).append(row)
        return list(found.values())

    def add(self, row, side, sample):
        self.results[row.name].setdefault(side.name, []).append(sample)

    def measure(self, rows, side):
        """One run of one side of a group of rows."""
        rows = [r for r in rows if (side.name in r.sides if side.filesystem else r.raw)]
        if not rows:
            return
        took = {}
        try:
            try:
                took = getattr(cases, rows[0].case)(self, side, rows[0]) if side.filesystem else transfers(side, rows)
            finally:
                side.close()
        except Exception as e:  # whatever went wrong belongs into the cells
            say(f"{side.name}: {e!r}")
            took = {r.key: took.get(r.key, {"error": str(e) or repr(e)}) for r in rows}
        for row in rows:
            self.add(row, side, checked(row, side, took.get(row.key, {"error": "not measured"})))

    def go(self, save):
        groups = self.groups()
        for number, rows in enumerate(groups, 1):
            for again in range(self.runs):
                sides = list(self.sides.values())
                at = again % len(sides)
                sides = sorted(sides[at:] + sides[:at], key=lambda s: s.name == "native+put")  # it needs what sluice did before
                for side in sides:
                    self.measure(rows, side)
                say(f"{number}/{len(groups)} {' '.join(r.name for r in rows)}: run {again + 1} of {self.runs}")
                save()

    def end(self):
        for side in self.sides.values():
            side.close()
        self.lake.remove()


def checked(row, side, sample):
    """A row whose bytes are to go past the daemon has not measured what it says where they do not, although the mount can."""
    ours = side.name == row.of and row.past_daemon and sample.get("mode")
    if not ours or sample["mode"] == PASSTHROUGH or sample["mode"] == DAEMON and not side.before["passthrough"]:
        return sample
    return {"error": f"the bytes went {sample['mode']}"}


def transfers(side, rows):
    """The rows of a client without a filesystem."""
    side.cold(rows[0].link)
    pages.machine.settle()
    return {row.key: side.transfer(row.raw) for row in rows}


def missing(row):
    """Why a row cannot run with this binary, or None."""
    if row.requires and row.requires[1] not in run(SLUICE, row.requires[0], "--help"):
        return f"sluice {row.requires[0]} has no {row.requires[1]}"
    return None


def parse():
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", description="Benchmark of Sluice beside the local disk, s3fs and rclone.")
    parser.add_argument("--runs", type=int, help="of each row and side [5; 1 with --quick]")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs, measures nothing")
    parser.add_argument("--rows", default="*", help="names of rows, comma-separated globs [*]")
    parser.add_argument("--only", help="sides, comma-separated: " + ",".join(SIDES))
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--out", default="bench-results", help="directory of the report [bench-results]")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds of an earlier run on this machine: rows that are complete are not measured again")
    parser.add_argument("--ballast", type=float, metavar="GIB", help="for a virtual machine whose host takes free memory back: hold all memory but so many GiB "
                        "and keep those full of page cache, since the first use of a free page is slow there and would be measured [no]")
    parser.add_argument("--work", required=True, help=argparse.SUPPRESS)  # run.sh: an empty directory that it removes
    parser.add_argument("--far-port", type=int, default=8995, help="of the delaying relay [8995]")
    parser.add_argument("--server-cpus", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse()
    if args.list:
        print("\n".join(f"{r.name:20} {r.title}" for r in all_rows(QUICK if args.quick else FULL)))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    work, out = pathlib.Path(args.work), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.ballast is not None:
        say(f"filling the memory but for {args.ballast} GiB")
        pages.machine = pages.Ballast(work, int(args.ballast * GIB))
    bench = Bench(args, work)
    try:
        bench.lake.create({need for r in bench.todo for need in r.needs}, DELAY_MS if any(r.link == "far" for r in bench.todo) else 0)
        bench.go(lambda: report.write(bench, out))
        print(report.write(bench, out))
    finally:
        bench.end()
    return 0


if __name__ == "__main__":
    os.environ.pop("AWS_CA_BUNDLE", None)
    sys.exit(main())
