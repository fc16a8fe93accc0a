"""The table of what is measured. One Row is one line of the result; rows of the same case, arguments and options are measured together."""
import dataclasses

from measure import GIB, KIB, MIB

MOUNTED = ("native", "s3fs", "rclone", "sluice")
OURS = ("native", "sluice")


@dataclasses.dataclass(frozen=True)
class Sizes:
    big: int
    huge: int
    mixed: int        # bytes of each of 16 writers and 16 readers
    torch_mib: int
    small_n: int      # files of 100 KiB: the first small_n of the epoch's
    epoch_n: int
    tree_n: int       # files of `tiny` bytes in 100 directories
    many_n: int
    rand_128k: int    # reads
    rand_4k: int
    preads: int
    memory: int       # limit for the epoch larger than memory
    small: int = 100 * KIB
    tiny: int = 100


FULL = Sizes(big=GIB, huge=2 * GIB, mixed=64 * MIB, torch_mib=1024, small_n=2000, epoch_n=20000, tree_n=10000, many_n=100000,
             rand_128k=16384, rand_4k=262144, preads=100, memory=GIB)
QUICK = Sizes(big=64 * MIB, huge=16 * MIB, mixed=MIB, torch_mib=8, small_n=40, epoch_n=100, tree_n=100, many_n=200,
              rand_128k=64, rand_4k=512, preads=20, memory=64 * MIB)


@dataclasses.dataclass(frozen=True)
class Raw:
    """What objbench and curl do beside a row: total bytes as objects of that size by that many threads."""
    op: str
    object: int
    total: int
    threads: int


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    title: str
    case: str              # function of cases.py
    key: str               # which of its results
    warm: str              # what is in which cache when the clock starts
    needs: tuple = ()      # data sets
    args: tuple = ()
    sides: tuple = MOUNTED
    of: str = "sluice"     # the side that is compared ...
    base: tuple = ()       # ... with the fastest of these; ("slowest", A, B): with the slower of two
    bar: float = 0         # base seconds / side seconds must be at least this; 0: no bar
    link: str = "near"     # or "far", behind the delaying relay
    options: tuple = ()    # of sluice mount
    requires: tuple = ()   # (verb, text of its --help): else the row is skipped
    raw: Raw | None = None
    unit: str = "s"

    def group(self):
        return (self.case, self.args, self.link, self.options)


NOTHING = "nothing"
COLD = "nothing: new mount, empty cache directory, page cache dropped"
PAGES = "page cache, cache disk, dentries"
DISK = "cache disk; page cache and dentries dropped"
PEERS = ("s3fs", "rclone")


def issue_rows(s):
    """Four sides: a big file written and read, a tree listed, small files read."""
    parts = Raw("put", 8 * MIB, s.big, 8)
    ranges = Raw("get", 8 * MIB, s.big, 8)
    files = Raw("get", s.small, s.small * s.small_n, 16)
    big = f"{s.big // MIB} MiB"
    few = f"{s.small_n} x 100 KiB"
    for link, where, bar in (("near", "", 0.9), ("far", ", 30 ms away", 0.9)):
        tag = "" if link == "near" else "-far"
        sides = MOUNTED if link == "near" else MOUNTED[1:]
        if link == "near":
            yield Row("write-close", f"write {big} by 1 MiB, until close returns", "write", "close", NOTHING, ("big",), ("big", MIB),
                      base=("native",), bar=0.9)
            yield Row("write-visible", f"write {big}, until the object is visible", "write", "visible", NOTHING, ("big",),
                      ("big", MIB), sides=MOUNTED[1:], base=("raw",), bar=0.87, raw=parts)
        yield Row("read-cold" + tag, f"read {big} by 1 MiB, cold{where}", "read", "cold", COLD, ("big",), ("big",), sides=sides,
                  base=("raw",), bar=bar, link=link, raw=ranges)
        if link == "near":
            yield Row("read-warm", f"read {big} by 1 MiB again", "read", "warm", PAGES, ("big",), ("big",), base=("native",), bar=0.95)
            yield Row("ls-cold", f"ls -lR of {s.tree_n} files, cold", "ls", "cold", COLD, ("tree",), ("tree",), base=PEERS, bar=1)
            yield Row("ls-warm", f"ls -lR of {s.tree_n} files again", "ls", "warm", PAGES, ("tree",), ("tree",), base=PEERS, bar=1)
        yield Row("small-cold" + tag, f"read {few} one after the other, cold{where}", "small", "cold", COLD, ("small",), sides=sides,
                  base=("raw",), bar=bar, link=link, raw=files)
        if link == "near":
            yield Row("small-warm", f"read {few} one after the other again", "small", "warm", PAGES, ("small",), base=("native",),
                      bar=0.9)


def raw_rows(s):
    """The client code without a filesystem, against curl -Z."""
    for name, title, raw in (("raw-put", "write 8 MiB objects, 8 at a time", Raw("put", 8 * MIB, s.big, 8)),
                             ("raw-get", "read 8 MiB objects, 8 at a time", Raw("get", 8 * MIB, s.big, 8)),
                             ("raw-small", "read 100 KiB objects, 16 at a time", Raw("get", s.small, s.small * s.small_n, 16))):
        yield Row(name, title, "nothing", "", NOTHING, sides=(), of="raw", base=("curl",), bar=0.9, raw=raw)
    one = Raw("get", 4 * KIB, 4 * KIB * s.preads, 1)
    yield Row("relay-delay", "one 4 KiB object after the other behind the relay", "nothing", "", NOTHING, sides=(), of="raw", raw=one,
              link="far")
    yield Row("relay-rate", "read 8 MiB objects, 8 at a time, behind the relay", "nothing", "", NOTHING, sides=(), of="raw",
              base=("curl",), raw=Raw("get", 8 * MIB, s.big, 8), link="far")


def all_rows(sizes):
    return [*issue_rows(sizes), *raw_rows(sizes)]
