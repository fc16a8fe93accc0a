"""How each case of rows.py is measured: a function (bench, side, row) that gives {key: sample} for one run of one side.

A case leaves nothing behind that the next one could find warm: it begins with side.cold(), and the caller closes the side after it.
"""
import time

from measure import MIB, Failed, io, measured, program


def nothing(_bench, _side, _row):
    """Rows that only the clients without a filesystem run."""
    return {}


def write(bench, side, row):
    which, block = row.args
    key, size = bench.new_name(side), bench.lake.size_of(which)
    took = {}

    def whole():
        with side.load():
            took["close"] = measured(side, lambda: io("write", side.root / key, size, block))
        closed = time.monotonic()
        side.note_upload(took["close"])
        side.wait_visible(key, size)
        return {"seconds": took["close"]["seconds"] + time.monotonic() - closed}

    side.cold(row.link, row.options)
    try:
        took["visible"] = measured(side, whole)
        side.check_object(key, size)
    finally:
        side.forget(key)
    return took


def read(bench, side, row):
    which = row.args[0]
    side.cold(row.link, row.options)
    path = side.root / which
    took = {key: measured(side, lambda: io("read", path, MIB)) for key in ("cold", "warm")}
    io("check-files", side.root, bench.lake.list_file(which), bench.lake.size_of(which))
    return took


def ls(bench, side, row):
    which = row.args[0]
    side.cold(row.link, row.options)
    return {key: list_all(bench, side, which) for key in ("cold", "warm")}


def list_all(bench, side, which):
    """ls -lR; the sum of the sizes that it prints must be right."""
    out = side.work / "ls"
    sample = measured(side, lambda: program("ls", "-lR", side.root / which, stdout=out))
    rows = [line.split() for line in out.read_text().splitlines() if line.startswith("-")]
    names = bench.lake.names(which)
    if len(rows) != len(names) or any(int(r[4]) != bench.lake.size_of(which) for r in rows):
        raise Failed(f"ls shows {len(rows)} files of {len(names)}, or wrong sizes")
    return sample


def small(bench, side, row):
    names = bench.lake.list_file("small", bench.sizes.small_n)
    side.cold(row.link, row.options)
    took = {key: measured(side, lambda: io("files", side.root, names, 1, 0)) for key in ("cold", "warm")}
    io("check-files", side.root, names, bench.sizes.small)
    return took
