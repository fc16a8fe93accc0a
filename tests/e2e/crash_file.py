"""The file by which a test has processes of a build with test points die at a crash point."""
import mmap
import re
import struct

from mounts import ROOT

POINTS = re.findall(r"^CRASH\((\w+)\)", (ROOT / "meta/base/crash_points.def").read_text(), re.M)


class CrashFile:
    """struct crash_file of meta/base/crash.h."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(20 + 4 * len(POINTS)))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)

    def arm(self, point, nth=1, parent=False, again=0):
        struct.pack_into("=III", self.map, 4, nth, int(parent), 0)
        struct.pack_into("=I", self.map, 16 + 4 * len(POINTS), again)
        struct.pack_into("=I", self.map, 0, POINTS.index(point) + 1)

    def armed(self):
        return struct.unpack_from("=I", self.map, 0)[0] != 0

    def disarm(self):
        struct.pack_into("=I", self.map, 0, 0)

    def reset(self):
        struct.pack_into("=IIII", self.map, 0, 0, 0, 0, 0)

    def fired(self):
        n = struct.unpack_from("=I", self.map, 12)[0]
        return POINTS[n - 1] if n else None

    def passed(self):
        return dict(zip(POINTS, struct.unpack_from(f"={len(POINTS)}I", self.map, 16)))
