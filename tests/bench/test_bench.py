"""The benchmark's own parts: ratios, cells, the check of what was read, the relay."""
import dataclasses
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import types
import xml.etree.ElementTree

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench  # noqa: E402
import lake  # noqa: E402
import pages  # noqa: E402
import report  # noqa: E402
import sides  # noqa: E402
from measure import DELAY, MIB, Failed, io  # noqa: E402
from rows import FULL, QUICK, Raw, Row, all_rows  # noqa: E402

ROW = Row("r", "R", "read", "cold", "nothing", base=("a", "b"), bar=0.9)


def seconds(*values):
    return [{"seconds": v} if v else {"error": "went | wrong"} for v in values]


def test_ratio_is_per_run_to_the_fastest_base():
    results = {"sluice": seconds(1, 2, None), "a": seconds(2, 8, 1), "b": seconds(3, 4, 1)}
    assert report.ratios(ROW, results, ("a", "b")) == [2, 2]


def test_ratio_to_the_slower_of_two_needs_both():
    results = {"sluice": seconds(1, 2), "a": seconds(2, 8), "b": seconds(3, None)}
    assert report.ratios(ROW, results, ("slowest", "a", "b")) == [3]


def test_bar_is_met_or_not_or_unknown():
    runs = [seconds(10), seconds(10, 9, 11), []]
    base = [seconds(9), seconds(8, 8, 11), seconds(9)]
    assert [report.verdict(ROW, {"sluice": s, "a": b}) for s, b in zip(runs, base)] == [True, False, None]


def test_limit_is_met_or_not_or_unknown():
    row = Row("m", "M", "idle", "", "nothing", limit=64, unit="MiB")
    assert [report.verdict(row, {"sluice": [{"MiB": v}]}) for v in (64, 65, None)] == [True, False, None]
    assert report.bar_text(row) == "at most 64 MiB"


def test_peers_bytes_fetched_and_bytes_stored_are_judged_too():
    ours, peers = [{"seconds": 1, "bytes": 100, "downloaded_bytes": 400, "uploaded_at_close": 50}], {"a": seconds(1), "p": seconds(2), "q": seconds(9)}
    raw = [{"seconds": 1, "bytes": 100}]
    for change, met in (({}, True), ({"also": ("p", "q"), "also_bar": 2}, True), ({"also": ("p", "q"), "also_bar": 2.1}, False), ({"fetch": 4}, True),
                        ({"fetch": 3.9}, False), ({"stored": 0.5}, True), ({"stored": 0.6}, False), ({"also": ("z",), "also_bar": 1}, None)):
        row = dataclasses.replace(ROW, base=("a",), **change)
        assert report.verdict(row, {"sluice": ours, "raw": raw, **peers}) is met, change
    row = dataclasses.replace(ROW, also=("p", "q"), also_bar=1.5, fetch=4, stored=0.5)
    assert report.bar_text(row) == "0.9; 1.5 to p / q; fetched at most 4 times; stored at least 0.5"


def test_row_with_a_failed_run_is_not_met():
    assert report.verdict(ROW, {"sluice": seconds(1, None), "a": seconds(2, 2)}) is False
    assert report.verdict(ROW, {"sluice": seconds(None), "a": seconds(2)}) is False
    assert report.verdict(dataclasses.replace(ROW, bar=0), {"sluice": seconds(None)}) is None


def test_every_row_with_peers_asks_to_be_first():
    rows = {r.name: r for r in all_rows(FULL)}
    for row in rows.values():
        if {"s3fs", "rclone"} <= set(row.sides) and row.unit == "s":
            assert (row.bar if row.base == ("s3fs", "rclone") else row.also == ("s3fs", "rclone") and row.also_bar) >= 1, row.name
    alone = {"torch-load-pinned", "epoch-stale", "epoch-immutable", "epoch-memory"}  # by options that only we have
    assert {r.name for r in rows.values() if "native" in r.sides and "s3fs" not in r.sides} == alone
    assert rows["torch-save"].also_bar == 1.5 and rows["preads"].fetch == rows["preads-far"].fetch == 4
    assert rows["write-1m"].stored == rows["write-64k"].stored == rows["write-4k"].stored == 0.5


def test_mode_is_what_the_daemon_counted():
    def mode(size, requests, files=1, can=True):
        return sides.mode_of({"passthrough": can, "fuse_requests": 11}, {"passthrough": can, "fuse_requests": 11 + requests}, {"bytes": size, "files": files})
    assert [mode(64 * MIB, n) for n in (10, 31, 32, 63, 64, 9999)] == [sides.PASSTHROUGH] * 2 + [sides.SOME] * 2 + [sides.DAEMON] * 2
    assert mode(16 * 64 * MIB, 100, 16) == sides.PASSTHROUGH and mode(MIB, 0, can=False) == sides.DAEMON
    assert mode(64 * MIB - 1, 0) is mode(2000 * 100 << 10, 6000, 2000) is None


def test_bytes_that_did_not_go_past_the_daemon_fail_the_run():
    row, side = dataclasses.replace(ROW, past_daemon=True), types.SimpleNamespace(name="sluice", before={"passthrough": True})
    good, bad = {"seconds": 1, "mode": sides.PASSTHROUGH}, {"seconds": 1, "mode": sides.SOME}
    assert bench.checked(row, side, good) == good and bench.checked(ROW, side, bad) == bad
    assert bench.checked(row, side, bad) == {"error": "the bytes went partly through the daemon"}
    side.before["passthrough"] = False  # it cannot, and the report says so
    assert bench.checked(row, side, {"mode": sides.DAEMON}) == {"mode": sides.DAEMON}


def test_modes_of_all_runs_are_shown():
    assert report.modes([{"mode": "passthrough"}, {"error": "no"}, {"mode": None}, {"mode": "through the daemon"}, {"mode": "passthrough"}]) == \
        "passthrough, through the daemon"


def test_plot_has_the_sides_that_take_part(tmp_path):
    rows = [dataclasses.replace(ROW, title="<all>"), dataclasses.replace(ROW, name="s"), dataclasses.replace(ROW, name="t", unit="MiB")]
    results = {"r": {"native": seconds(1, 3, 2), "sluice": seconds(None), "raw": seconds(4)}, "s": {}, "t": {"sluice": [{"MiB": 0}]}}
    text = report.svg(types.SimpleNamespace(rows=rows, results=results, runs=1))
    plot = xml.etree.ElementTree.fromstring(text)
    texts = [t.text for t in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1:] == ["<all>", "native", "2 s", "sluice", "failed", "raw", "4 s", "R", "sluice", "0 MiB"]
    bars = [float(r.get("width")) for r in plot.iter("{http://www.w3.org/2000/svg}rect") if r.get("fill") in report.COLOURS.values()]
    assert bars == [300, 600, 1]


def test_of_several_raw_rates_the_fastest_counts(monkeypatch):
    rows = [{"op": op, "concurrency": n, "seconds": s, "cpu_seconds": s / 2, "bytes": 10, "p50_ms": 1} for op, n, s in (("put", 8, 1), ("get", 8, 4), ("get", 16, 2))]
    asked = []
    monkeypatch.setattr(lake, "run", lambda *args, **_: asked.append(args) or json.dumps({"results": rows}))
    side = types.SimpleNamespace(bucket="b", links={"far": "url"})
    sample = lake.Lake.raw_objbench(side, Raw("get", 5, 10, (8, 16)), "far")
    assert sample == {"seconds": 2, "client_cpu": 1, "threads": 16, "bytes": 10, "p50_ms": 1}
    assert "8,16" in asked[0]


def test_stored_share_is_of_what_the_raw_put_could_store():
    raw = [{"seconds": 4, "bytes": 800}]
    for took, share in ((2, 0.5), (8, 0.25)):  # 400 of 800 bytes possible, then all 800
        assert report.stored_shares({"sluice": [{"seconds": took, "bytes": 800, "uploaded_at_close": 200}], "raw": raw}) == [share]


def test_failure_is_shown_in_the_cell():
    assert report.cell(ROW, seconds(None)) == "failed: went / wrong"
    assert report.cell(ROW, seconds(1, None, 2)) == "1.5 (1-2) failed: went / wrong"


def test_resume_takes_only_what_was_measured_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_SERVER_CPUS", "0")
    bench = types.SimpleNamespace(rows=[ROW], results={"r": {"sluice": seconds(1), "a": seconds(2)}}, skipped={}, when={"r": "then"}, runs=1, sizes=QUICK)
    assert report.earlier(bench, tmp_path) == ({}, {})
    report.write(bench, tmp_path)
    assert report.earlier(bench, tmp_path) == (bench.results, bench.when)
    bench.sizes = FULL
    with pytest.raises(SystemExit, match="made with other sizes"):
        report.earlier(bench, tmp_path)


def test_report_says_when_if_in_several_runs():
    rows = [ROW, dataclasses.replace(ROW, name="s")]
    assert report.times(types.SimpleNamespace(rows=rows, when={"r": "1", "s": "1"})) == []
    assert report.times(types.SimpleNamespace(rows=rows, when={"r": "2", "s": "1"}))[-2:] == ["- 1: s", "- 2: r"]


def test_rows_have_names_of_their_own_and_groups_measure_alike():
    for sizes in (FULL, QUICK):
        rows = all_rows(sizes)
        assert len({r.name for r in rows}) == len(rows)
        for group in {r.group() for r in rows}:
            keys = [r.key for r in rows if r.group() == group]
            assert len(set(keys)) == len(keys), group


def spoil(path, off):
    with open(path, "r+b") as f:
        f.seek(off)
        byte = f.read(1)[0]
        f.seek(off)
        f.write(bytes([byte ^ 1]))


def test_wrong_bytes_are_found(tmp_path):
    names = tmp_path / "names"
    names.write_text("d/one\n")
    io("fill", tmp_path, names, 3 * MIB + 5000)
    path = tmp_path / "d/one"
    assert io("read", path, MIB)["bytes"] == 3 * MIB + 5000
    spoil(path, 2 * MIB + 4096 * 3 + 100)
    io("read", path, MIB)  # between the stamps: for the full check to find
    with pytest.raises(Failed, match="wrong bytes"):
        io("check-files", tmp_path, names, 3 * MIB + 5000)
    with pytest.raises(Failed, match="wrong bytes"):
        io("check-rand", path, 64 * 1024, 500, 3)
    spoil(path, 2 * MIB + 4096 * 3)
    for args in (("read", path, MIB), ("mmap", path), ("files", tmp_path, names, 2, 0)):
        with pytest.raises(Failed, match="wrong bytes"):
            io(*args)


def test_check_wants_the_whole_file(tmp_path):
    names = tmp_path / "names"
    names.write_text("f\n")
    io("fill", tmp_path, names, MIB)
    with pytest.raises(Failed, match="1048576 bytes instead of"):
        io("check-files", tmp_path, names, MIB + 1)


def cached(path):
    """Bytes of a file that are in the page cache."""
    return int(subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], check=True, capture_output=True, text=True).stdout)


def test_ballast_fills_what_is_free_and_drops_only_what_is_measured(tmp_path, monkeypatch):
    free = iter([pages.FREE + 3, pages.FREE + 2, pages.FREE])
    ballast = pages.Ballast(tmp_path, leave=1 << 60)
    assert ballast.held is None
    monkeypatch.setattr(pages, "meminfo", lambda _: next(free))
    ballast.settle()
    assert ballast.at == 64 * MIB <= cached(tmp_path / "holes")
    (tmp_path / "d").mkdir()
    paths = [tmp_path / "one", tmp_path / "d/two"]
    for path in paths:
        path.write_bytes(bytes(MIB))
    assert [cached(path) for path in paths] == [MIB, MIB]
    monkeypatch.setattr(pages, "mount_points", lambda: {str(tmp_path / "d")})
    with paths[1].open("rb"):  # the kernel may free an inode that nobody uses, with its pages
        ballast.drop()
    assert [cached(path) for path in paths] == [0, MIB]


def test_ballast_that_others_free_again_comes_to_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "memory_size", lambda: 64 * MIB)
    ballast = pages.Ballast(tmp_path, leave=1 << 60)
    monkeypatch.setattr(pages, "meminfo", lambda _: pages.FREE + 1)
    ballast.settle()
    assert ballast.at == 64 * MIB


@pytest.fixture
def echo():
    """A server that sends everything back; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(s):
        with s:
            while data := s.recv(1 << 16):
                s.sendall(data)
            s.shutdown(socket.SHUT_WR)

    def accept():
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(s,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def test_relay_delays_and_changes_nothing(echo):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    relay = subprocess.Popen([DELAY, str(port), str(echo), "30"], stdout=subprocess.PIPE, text=True)
    try:
        assert relay.stdout.readline() == "ready\n"
        with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
            for _ in range(3):
                start = time.monotonic()
                s.sendall(b"ping")
                assert s.recv(4) == b"ping"
                assert time.monotonic() - start >= 0.030
            data = json.dumps(list(range(400000))).encode()
            sender = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
            sender.start()
            got = b"".join(iter(lambda: s.recv(1 << 16), b""))
            sender.join(20)
            assert got == data
    finally:
        relay.terminate()
        relay.wait(10)
        relay.stdout.close()
