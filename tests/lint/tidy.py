#!/usr/bin/python3
"""Checks sizes, words, file modes, that every test is registered, every row of the tables of faults, odd keys and security tested, and every crash point placed and described.

usage: tidy.py sizes|words|modes|registered|rows|points ...     (default: all). One line per offence; exit 1 if there is any.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_C, MAX_H, MAX_FUNCTION = 800, 250, 100
LONG_HEADERS = {"fs/fs.h": 260, "meta/meta.h": 320, "s3/objstore.h": 300}
# Written in two halves so that this file does not find itself.
WORDS = re.compile(r"\b(" + "|".join(a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))) + r")\b")
FUNCTION_END = re.compile(r"^}")


def tracked(*suffixes):
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True,
                           check=True).stdout.split("\n")
    for name in names:
        if name.endswith(suffixes) and not name.startswith("subprojects/") and (ROOT / name).is_file():
            yield name, ROOT / name


def functions(lines):
    """(first line number, length) of each function: clang-format puts its braces alone in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif start and FUNCTION_END.match(line):
            yield start, number - start + 1
            start = None


def sizes():
    for name, path in tracked(".c", ".h"):
        lines = path.read_text(errors="replace").split("\n")
        limit = MAX_C if name.endswith(".c") else LONG_HEADERS.get(name, MAX_H)
        if len(lines) - 1 > limit:
            yield f"{name}: {len(lines) - 1} lines, at most {limit}"
        for number, length in functions(lines):
            if length > MAX_FUNCTION:
                yield f"{name}:{number}: function of {length} lines, at most {MAX_FUNCTION}"


def words():
    for name, path in tracked(".c", ".h", ".def", ".py", ".sh", ".build", ".md", ".yaml", ".yml"):
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if WORDS.search(line):
                yield f"{name}:{number}: unfinished by its own words: {line.strip()[:80]}"


def modes():
    for name, path in tracked(".sh", ".py"):
        text = path.read_text(errors="replace")
        if text.startswith("#!") and not path.stat().st_mode & 0o100:
            yield f"{name}: begins with #! and is not executable"
        if name.endswith(".sh") and not text.startswith("#!"):
            yield f"{name}: a script without #! line"


def registered():
    rows = (ROOT / "tests/unit/meson.build").read_text()
    for path in sorted((ROOT / "tests/unit").glob("test_*.c")):
        if f"'{path.stem[5:]}'" not in rows:
            yield f"tests/unit/{path.name}: not registered in tests/unit/meson.build"
    targets = (ROOT / "tests/fuzz/meson.build").read_text()
    for path in sorted((ROOT / "tests/fuzz").glob("fuzz_*.c")):
        name = path.stem[5:]
        if name != "main" and (f"['{name}'," not in targets or not any((ROOT / "tests/fuzz/corpus" / name).glob("*"))):
            yield f"tests/fuzz/{path.name}: no row in tests/fuzz/meson.build, or no input in tests/fuzz/corpus/{name}"
    for path in sorted((ROOT / "tests/unit").glob("test_*.c")) + sorted((ROOT / "tests/posix").glob("*.c")):
        text = path.read_text()
        for test in re.findall(r"^(?:START_TEST|CASE)\((\w+)", text, re.M):
            if len(re.findall(rf"\b{test}\b", text)) < 2:
                yield f"{path.relative_to(ROOT)}: {test} is never run"


# Tables of tests/fault/README.md: the letter before the numbers of the rows, how many there are, their columns.
TABLES = [("", 50, "a fault, an outcome, sizes and tests"), ("K", 21, "keys, an outcome and tests"), ("S", 14, "a danger, an outcome and tests")]
UNTESTED = "S11"  # nothing is there to test


def test_names():
    names = {path.stem for path in (ROOT / "tests/fuzz").glob("fuzz_*.c")}
    for path in (ROOT / "tests").rglob("test_*"):
        if path.suffix in (".c", ".py"):
            names |= set(re.findall(r"^(?:START_TEST\((?=\w)|def (?=test_))(\w+)", path.read_text(), re.M))
    return names


def fault_rows():
    """Rows of those tables that are not there once, or lack a part, a test, or name one that is not there."""
    names = test_names()
    text = (ROOT / "tests/fault/README.md").read_text()
    for letter, n, columns in TABLES:
        rows = [[part.strip() for part in line.strip("|").split("|")] for line in re.findall(rf"^\| *{letter}\d+ \|.*\|$", text, re.M)]
        if [row[0] for row in rows] != [f"{letter}{i}" for i in range(1, n + 1)]:
            yield f"tests/fault/README.md: rows {', '.join(row[0] for row in rows)}, not {letter}1 to {letter}{n}"
        for row in rows:
            if len(row) != columns.count(",") + columns.count(" and ") + 2 or "" in row:
                yield f"tests/fault/README.md: row {row[0]}: not {columns}"
            elif row[0] != UNTESTED and (missing := [test for test in re.split(r",\s*", row[-1]) if test not in names]):
                yield f"tests/fault/README.md: row {row[0]}: {', '.join(missing)}: no such test"


def points():
    names = re.findall(r"^CRASH\((\w+)\)", (ROOT / "meta/base/crash_points.def").read_text(), re.M)
    text = (ROOT / "meta/FORMAT.md").read_text().split("\n## Crash points\n")[-1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", text, re.M)
    used = [x for name, path in tracked(".c") if not name.startswith("tests/") for x in re.findall(r"\bCRASH_POINT\((\w+)\)", path.read_text())]
    for name in sorted({*names, *rows, *used}):
        for where, found in (("meta/base/crash_points.def", names), ("meta/FORMAT.md, Crash points", rows), ("CRASH_POINT() in the code", used)):
            if found.count(name) != 1:
                yield f"crash point {name}: {found.count(name)} times in {where}, not once"


CHECKS = {"sizes": sizes, "words": words, "modes": modes, "registered": registered, "rows": fault_rows, "points": points}


def main():
    names = sys.argv[1:] or list(CHECKS)
    offences = [line for name in names for line in CHECKS[name]()]
    print("\n".join(offences) or "tidy: no offence")
    return 1 if offences else 0


sys.exit(main())
