#!/usr/bin/python3
"""Counts what a suite of tests/run.sh left behind: the last line is "PASSED FAILED SKIPPED", before it what failed.

usage: sums.py meson testlog.json | pytest junit.xml | bench bench.json | coverage gcovr-summary.json
"""
import fnmatch
import json
import re
import sys
import xml.etree.ElementTree as tree

# Share of lines that has to run, of the files that match. The journal and the uploads carry the promises: the database and what is recorded of closed files
# and found again; all between a file that was closed and the object that was verified.
GATES = [
    ("all", 85, ["*"]),
    ("journal", 95, ["meta/*", "fs/content_record.c", "fs/durable.c", "fs/intent.c", "fs/rebuild.c", "fs/recover.c", "fs/states.c"]),
    ("upload", 95, ["cache/upload*.c", "cache/cache_publish.c", "cache/cache_sums.c", "fs/publish*.c", "fs/conflict.c", "fs/delta*.c", "s3/s3_multipart.c"]),
]


def say(*words):
    print(*words, file=sys.stderr)


def meson(path):
    """Sums check's "NN%: Checks: X, Failures: Y, Errors: Z" lines; a program without such a line counts as one test."""
    passed = failed = skipped = 0
    with open(path, encoding="utf-8") as log:
        for row in map(json.loads, log):
            found = re.findall(r"\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", row.get("stdout", ""))
            bad = row["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")
            if row["result"] == "SKIP":
                skipped += 1
            elif found:
                n, y, z = (sum(int(x[i]) for x in found) for i in range(3))
                passed, failed = passed + n - min(n, y + z), failed + max(y + z, bad)
            else:
                passed, failed = passed + (not bad), failed + bad
            if bad:
                say("FAILED", row["name"], row["result"])
                say("\n".join((row.get("stdout", "") + row.get("stderr", "")).splitlines()[-25:]))
    return passed, failed, skipped


def pytest(path):
    n = skipped = bad = 0
    for suite in tree.parse(path).getroot().iter("testsuite"):
        a = suite.attrib
        n, skipped, bad = n + int(a["tests"]), skipped + int(a["skipped"]), bad + int(a["failures"]) + int(a["errors"])
    return max(n - skipped - bad, 0), bad, skipped


def bench(path):
    """A row passes if it was measured."""
    passed = failed = skipped = 0
    with open(path, encoding="utf-8") as result:
        rows = json.load(result)["rows"]
    for row in rows:
        samples = [x for side in row["samples"].values() for x in side]
        bad = [x["error"] for x in samples if "error" in x]
        if row["skipped"]:
            skipped += 1
        elif bad or not samples:
            failed += 1
            say("FAILED", row["name"], *bad[:1])
        else:
            passed += 1
    return passed, failed, skipped


def coverage(path):
    """A gate passes if enough of its lines ran; else its files are named, those that lack most first."""
    passed = failed = 0
    with open(path, encoding="utf-8") as summary:
        files = [(f["filename"], f["line_total"], f["line_covered"]) for f in json.load(summary)["files"]]
    for name, least, patterns in GATES:
        mine = [f for f in files if any(fnmatch.fnmatch(f[0], p) for p in patterns)]
        total, run = sum(f[1] for f in mine), sum(f[2] for f in mine)
        share = 100 * run / total if total else 0
        say(f"{'ok' if share >= least else 'FAILED'} coverage of {name}: {run} of {total} lines, {share:.1f} %, at least {least} %")
        if share >= least:
            passed += 1
            continue
        failed += 1
        for f, n, covered in sorted(mine, key=lambda f: f[2] - f[1])[:15]:
            say(f"    {f}: {n - covered} of {n} lines never ran")
    return passed, failed, 0


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in COUNTERS:
        sys.exit(__doc__)
    print(*COUNTERS[sys.argv[1]](sys.argv[2]))


COUNTERS = {"meson": meson, "pytest": pytest, "bench": bench, "coverage": coverage}
main()
