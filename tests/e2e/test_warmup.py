"""Warm-up as a scheduler uses it: a huge prefix, jobs that outlive their worker, shares, time, limits, manifests, bad input."""
import json
import os
import pathlib
import subprocess
import threading

import pytest

import lake
from mounts import MIB, QUICK, SLUICE, eventually, run

MANY = 20000 if QUICK else 100000
DATABASE_MIB = 160  # what the database may keep in memory by itself: three write buffers and its block cache


def fill(store, names, data=b"12345"):
    for name in names:
        store.put(name, data)


def lines_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def warm(*args, check=True, **kw):
    """The lines of a warm-up in JSON."""
    done = run("warmup", "--progress", "json", *args, check=check, timeout=kw.pop("timeout", 240), **kw)
    return done, [line for line in lines_of(done) if line["event"] == "progress"][-1:]


def totals(*args, **kw):
    return warm(*args, **kw)[1][0]


def job_of(m, job):
    """The state of a job and the exit code that told it."""
    done = run("warmup", f"--status={job}", "--json", m.path, check=False)
    found = [line for line in lines_of(done) if line["event"] == "job"]
    return (found[0] if found else None), done.returncode


def start_job(m, *args):
    done = run("warmup", "-b", *args)
    return int(done.stdout.split()[1])


def rss(pid):
    """What the process holds by itself at most so far, KiB: files it maps belong to the page cache."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.startswith("Rss")}["RssAnon"]


def plant(store, top, n, per_dir=1000):
    """Objects made as fast as their store takes them."""
    for d in range(n // per_dir):
        where = store.root / top / f"d{d:04}"
        where.mkdir(parents=True)
        for f in range(per_dir):
            with open(where / f"f{f:04}", "wb") as out:
                out.write(b"12345")


# ---- many names ----


@pytest.mark.slow
@pytest.mark.directory  # objects are made directly
@pytest.mark.parametrize("per_dir", [1000, MANY // 2], ids=["many directories", "two directories"])
def test_memory_does_not_grow_with_the_number_of_names(make_mount, store, per_dir):
    """The second half of the names costs what the database keeps in memory of them, not what a list of them does."""
    plant(store, "a", MANY // 2, per_dir)
    plant(store, "b", MANY // 2, per_dir)
    m = make_mount(metadata_ttl="1h")
    pid = m.status()["pid"]
    done, last = warm("--check", m.path / "a", check=False)
    assert done.returncode == 1 and last[0]["files_total"] == MANY // 2
    before, grown, stop = rss(pid), [0], threading.Event()

    def watch():
        while not stop.wait(0.1):
            grown[0] = max(grown[0], rss(pid) - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        done, last = warm("--check", m.path / "b", check=False)
    finally:
        stop.set()
        thread.join()
    assert (last[0]["files_total"], last[0]["bytes_total"], last[0]["files_cached"]) == (MANY // 2, 5 * MANY // 2, 0)
    assert grown[0] < DATABASE_MIB * 1024, f"{grown[0]} KiB for {MANY // 2} names"
    p = totals("-p", 32, "--nodes", "3/20", m.path)
    assert p["files_fetched"] == p["files_total"] and p["files_failed"] == p["files_cached"] == 0
    assert abs(p["files_total"] - MANY // 20) < MANY // 100
    assert p["bytes_total"] == p["bytes_done"] == p["bytes_fetched"] == 5 * p["files_total"]


@pytest.mark.slow
@pytest.mark.directory  # objects are made directly
def test_a_list_longer_than_a_request_is_one_job(make_mount, store, base):
    plant(store, "set", 20000)
    m = make_mount(metadata_ttl="1h")
    names = [f"{m.path}/././././set/d{i // 1000:04}/f{i % 1000:04}" for i in range(20000)]
    (base / "list").write_text("".join(f"{name}\n" for name in [*names, f"{m.path}/set/none"]))
    assert (base / "list").stat().st_size > MIB
    done, last = warm("-f", base / "list", check=False)
    assert done.returncode == 1 and last[0]["missing"] == 1
    assert last[0]["files_fetched"] == 20000 and last[0]["errors"] == 1
    assert totals(m.path / "set")["files_cached"] == 20000


def test_names_are_fetched_while_they_are_listed(make_mount):
    """A listing that has given its first page only: what that page named comes already."""
    bucket = lake.Lake()
    m = None
    try:
        for i in range(2500):
            bucket.put(f"set/f{i:05}", b"12345")
        m = make_mount(source=bucket.source, endpoint_url=bucket.endpoint, start=False)
        m.env = bucket.env()
        m.mount()
        bucket.pages_open.clear()
        job = start_job(m, m.path / "set")
        assert eventually(lambda: job_of(m, job)[0]["files_fetched"] >= 500), job_of(m, job)
        assert job_of(m, job)[0]["state"] == "running"
        bucket.answer_again()
        assert eventually(lambda: job_of(m, job)[1] == 0), job_of(m, job)
        assert job_of(m, job)[0]["files_fetched"] == 2500
    finally:
        bucket.answer_again()
        if m:
            m.umount()
        bucket.remove()


# ---- what is here, and what is not ----


def test_counts_and_check(make_mount, store):
    m = make_mount(metadata_ttl="1h")
    fill(store, [f"d/f{i}" for i in range(10)], b"x" * 1000)
    done = run("warmup", "--check", m.path / "d", check=False)
    assert done.returncode == 1 and "10 of 10 files are not in the cache" in done.stderr
    assert done.stdout.count("  0%  0 B of 1000 B  d/f") == 10
    totals(m.path / "d/f0", m.path / "d/f1")
    p = totals(m.path / "d")
    assert (p["files_cached"], p["files_fetched"], p["bytes_cached"], p["bytes_fetched"]) == (2, 8, 2000, 8000)
    assert (p["files_done"], p["files_total"], p["bytes_done"], p["bytes_total"]) == (10, 10, 10000, 10000)
    assert run("warmup", "--check", m.path / "d").stdout == "in the cache: all 10 files, 9.8 KiB\n"
    run("evict", m.path / "d/f3")
    done = run("warmup", "--check", "--json", m.path / "d", check=False)
    assert done.returncode == 1
    assert [line["path"] for line in lines_of(done) if line["event"] == "check"] == ["d/f3"]
    out = run("warmup", "--evict", m.path / "d").stdout
    assert out.startswith("evicted 9 files, ")


def test_more_than_the_cache_holds_is_said_before_and_after(make_mount, store):
    m = make_mount(metadata_ttl="1h", cache_size="64M")
    fill(store, [f"d/f{i:02}" for i in range(20)], os.urandom(5 * MIB))
    done = run("warmup", m.path / "d", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "warning: 100.0 MiB are to be kept, but the cache has room for 64.0 MiB" in done.stderr
    checked = run("warmup", "--check", m.path / "d", check=False)
    left = [line for line in done.stderr.splitlines() if "of 20 files, " in line]
    assert left and left == [line for line in checked.stderr.splitlines() if "of 20 files, " in line]


def test_what_is_complete_costs_no_request(make_mount, store):
    m = make_mount(metadata_ttl="1h")
    fill(store, [f"d/f{i}" for i in range(50)])
    totals(m.path / "d")
    before = m.status()["requests"]
    p = totals(m.path / "d")
    assert p["files_cached"] == 50 and p["bytes_fetched"] == 0
    assert m.status()["requests"] == before


def test_names_that_are_not_there_are_counted_and_the_first_named(mount, store, base):
    fill(store, ["d/a"])
    (base / "list").write_text("".join(f"d/none{i:02}\n" for i in range(30)) + "d/a\n")
    done = run("warmup", "-f", base / "list", check=False, cwd=mount.path)
    assert done.returncode == 1
    assert done.stderr.count("No such file") == 20 and "30 in all" in done.stderr, done.stderr
    assert "30 failed, 30 of them not found" in done.stderr
    assert mount.info("d/a")["cached_bytes"] == 5
    (base / "list").write_text("".join(f"/nowhere/{i:02}\n" for i in range(30)))
    done = run("warmup", "-f", base / "list", check=False)
    assert done.returncode == 1 and done.stderr.count("is not in a sluice mount") == 20 and "10 more" in done.stderr


# ---- jobs ----


def test_a_job_goes_on_when_its_worker_is_killed(make_mount, store):
    m = make_mount(fault="op=get,action=delay:100ms", metadata_ttl="1h")
    fill(store, [f"d/f{i:03}" for i in range(200)])
    job = start_job(m, "-p", 4, m.path / "d")
    eventually(lambda: job_of(m, job)[0]["files_done"] >= 10)
    found, code = job_of(m, job)
    assert found["state"] == "running" and code == 3
    m.kill_worker()
    found = job_of(m, job)[0]
    assert found["id"] == job and found["resumed"] == 1, "the next worker knows the job before it answers"
    assert eventually(lambda: job_of(m, job)[1] == 0, 60), job_of(m, job)
    found, _ = job_of(m, job)
    assert found["files_total"] == found["files_done"] == 200
    assert found["files_cached"] >= 10 and found["files_cached"] + found["files_fetched"] == 200
    assert run("warmup", "--check", m.path / "d").returncode == 0
    m.kill_worker()
    assert job_of(m, job)[0]["state"] == "done", "what ended is told by the next worker too"
    assert not list((m.cache / "jobs").iterdir())


def test_what_is_pinned_is_fetched_although_its_worker_is_killed(make_mount, store):
    m = make_mount(fault="op=get,action=delay:1s", metadata_ttl="1h")
    fill(store, [f"d/f{i:03}" for i in range(40)])
    run("pin", m.path / "d")
    m.kill_worker()
    assert eventually(lambda: run("warmup", "--check", m.path / "d", check=False).returncode == 0, 60)
    assert not lines_of(run("warmup", "--status", "--json", m.path)), "nobody ordered a job"


def test_a_job_goes_on_at_the_next_mount_and_one_that_was_stopped_does_not(make_mount, store):
    m = make_mount(fault="op=get,action=delay:200ms", metadata_ttl="1h")
    fill(store, [f"{d}/f{i:03}" for d in "ab" for i in range(60)])
    going, stopped = start_job(m, "-p", 1, m.path / "a"), start_job(m, "-p", 1, m.path / "b")
    assert eventually(lambda: job_of(m, going)[0]["files_done"] >= 2)
    line = run("warmup", "--stop", stopped, m.path).stdout
    assert "stopped" in line
    m.kill9()
    m.mount(fault=None)
    assert eventually(lambda: job_of(m, going)[1] == 0), job_of(m, going)
    assert job_of(m, going)[0]["files_total"] == 60
    found, code = job_of(m, stopped)
    assert found["state"] == "stopped" and code == 3
    assert len(lines_of(run("warmup", "--status", "--json", m.path))) == 2
    assert run("warmup", "--status", going, m.path).returncode == 0
    newer = start_job(m, m.path / "b")
    assert newer > stopped
    assert eventually(lambda: job_of(m, newer)[1] == 0)


def test_a_warm_up_that_is_watched_goes_on_when_the_worker_is_killed(make_mount, store):
    m = make_mount(fault="op=get,action=delay:50ms", metadata_ttl="1h")
    fill(store, [f"d/f{i:03}" for i in range(200)])
    with subprocess.Popen([SLUICE, "warmup", "-p", "4", "--progress", "json", str(m.path / "d")], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as work:
        assert eventually(lambda: m.status()["downloaded_bytes"] >= 50)
        m.kill_worker()
        out, err = work.communicate(timeout=120)
    assert (work.returncode, err) == (0, "")
    last = json.loads(out.splitlines()[-1])
    assert last["files_done"] == last["files_total"] == 200 and last["files_cached"] >= 10


def test_a_warm_up_that_is_watched_survives_an_upgrade_and_ends_with_the_mount(make_mount, store):
    m = make_mount(fault="op=get,action=delay:100ms", metadata_ttl="1h")
    fill(store, [f"d/f{i:03}" for i in range(200)])
    ended = []
    for end in (lambda: run("upgrade", m.path), m.umount):
        with subprocess.Popen([SLUICE, "warmup", "-p", "1", "--progress", "json", str(m.path / "d")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as work:
            assert work.stdout.readline()
            before = m.status()["downloaded_bytes"]
            assert eventually(lambda n=before: m.status()["downloaded_bytes"] > n)
            end()
            out, err = work.communicate(timeout=120)
        ended.append((work.returncode, out, err))
        if m.is_mounted():
            run("evict", m.path / "d")
    assert (ended[0][0], ended[0][2]) == (0, "")
    assert json.loads(ended[0][1].splitlines()[-1])["files_done"] == 200
    assert ended[1][0] == 1 and "was unmounted before this was done" in ended[1][2], ended[1][2]


def test_time_runs_out_with_work_left(make_mount, store):
    m = make_mount(fault="op=get,action=delay:500ms", metadata_ttl="1h")
    fill(store, [f"d/f{i:03}" for i in range(100)])
    done, last = warm("-p", 1, "--timeout", "2s", m.path / "d", check=False)
    assert done.returncode == 3 and 0 < last[0]["files_done"] < 100
    job = start_job(m, "-p", 1, "--timeout", "2s", m.path / "d")
    assert eventually(lambda: job_of(m, job)[0]["state"] == "timeout")
    found, code = job_of(m, job)
    assert code == 3 and found["files_done"] < found["files_total"] == 100


def test_nodes_split_a_prefix(make_mount, store):
    fill(store, [f"d{i % 7}/f{i:03}" for i in range(140)])
    seen = []
    for node in range(3):
        m = make_mount(f"node{node}")
        p = totals("--nodes", f"{node}/3", m.path)
        assert p["files_fetched"] == p["files_total"] > 0
        seen.append({path for path in store.list() if m.info(path)["cached_bytes"] == 5})
        assert len(seen[-1]) == p["files_total"]
        assert run("warmup", "--check", "--nodes", f"{node}/3", m.path).returncode == 0
    assert set.union(*seen) == set(store.list()) and sum(map(len, seen)) == 140


def test_a_limit_is_of_one_job(make_mount, store):
    """At 1 B/s the first piece is paid for after days; what else reads does not wait for it."""
    m = make_mount(metadata_ttl="1h")
    fill(store, ["d/slow", "d/other"], os.urandom(4 * MIB))
    job = start_job(m, "--download-limit", 1, m.path / "d/slow")
    assert eventually(lambda: job_of(m, job)[0]["bytes_fetched"] > 0)
    assert (m.path / "d/other").read_bytes() == store.get("d/other")
    found, _ = job_of(m, job)
    assert found["state"] == "running" and found["bytes_fetched"] < 4 * MIB
    run("warmup", "--stop", job, m.path)
    assert totals("--download-limit", "1G", m.path / "d")["bytes_done"] == 8 * MIB


# ---- manifests ----


def test_an_index_of_safetensors(mount, store, base):
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    fill(store, [f"m/{s}" for s in shards] + ["m/other.bin"])
    index = {"metadata": {"total_size": 15}, "weight_map": {f"layer.{i}": shards[i % 3] for i in range(90)}}
    store.put("m/model.safetensors.index.json", json.dumps(index).encode())
    p = totals("-f", mount.path / "m/model.safetensors.index.json")
    assert (p["files_total"], p["bytes_done"]) == (3, 15)
    assert [mount.info(f"m/{s}")["cached_bytes"] for s in shards] == [5, 5, 5]
    assert mount.info("m/other.bin")["cached_bytes"] == 0
    index["weight_map"]["lost"] = "model-9.safetensors"
    (base / "copy.json").write_text(json.dumps(index))
    done = run("warmup", "--manifest", "safetensors", "--base", mount.path / "m", "-f", base / "copy.json", check=False)
    assert done.returncode == 1 and "m/model-9.safetensors: " in done.stderr and "1 of them not found" in done.stderr


def test_shards_of_webdataset(mount, store, base):
    names = [f"wds/{split}-{i:03}.tar" for split in ("train", "val") for i in range(12)]
    fill(store, names)
    piped = subprocess.run([SLUICE, "warmup", "--progress", "json", "-f", "-"], input="wds/train-{000..004}.tar\n", text=True,
                           capture_output=True, cwd=mount.path, timeout=60, check=True)
    assert json.loads(piped.stdout.splitlines()[-1])["files_fetched"] == 5
    (base / "shards").write_text(f"{store.source}/wds/{{train,val}}-{{005..006}}.tar\npipe:aws s3 cp {store.source}/wds/val-000.tar -\n")
    p = totals("-f", base / "shards", mount.path / "wds/val-011.tar")
    assert p["files_total"] == 6 and p["missing"] == 0
    (base / "wds.json").write_text(json.dumps({"shardlist": [{"url": f"val-{i:03}.tar"} for i in range(3)]}))
    p = totals("-f", base / "wds.json", "--base", mount.path / "wds")
    assert (p["files_total"], p["files_cached"]) == (3, 1)
    done = run("warmup", "-f", "/dev/stdin", check=False)
    assert done.returncode == 2 and "names nothing" in done.stderr
    (base / "shards").write_text("s3://other-bucket/x.tar\n")
    done = run("warmup", "-f", base / "shards", check=False)
    assert done.returncode == 1 and "lies in the source of no sluice mount" in done.stderr


def test_urls_of_linked_buckets(make_mount, store, base):
    """Of a mount that has links only and of one with a bucket itself, where the longest source counts. What a link hides is shown by none."""
    one, two = (type(store)(base / name) for name in ("one", "two"))
    endpoint = ["--endpoint-url", store.endpoint] if store.endpoint else []
    fill(one, ["p/a.tar", "p/d/b.tar", "q/c.tar"])
    fill(two, ["x-000.tar", "x-001.tar"], b"1234567")
    only = make_mount("only", start=False)
    run(*[a for a in only.arguments({"endpoint_url": None}) if a != only.source], env=only.env)
    run("link", "add", *endpoint, f"{one.source}/p", only.path / "deep/one")
    run("link", "add", *endpoint, two.source, only.path / "two")
    shards = base / "shards"
    shards.write_text(f"{one.source}/p/d/b.tar\n{two.source}/x-{{000..001}}.tar\npipe:aws s3 cp {one.source}/p/a.tar -\n")
    p = totals("-f", shards)
    assert (p["files_total"], p["bytes_fetched"], p["missing"]) == (4, 24, 0)
    assert only.info("deep/one/d/b.tar")["cached_bytes"] == 5 and only.info("two/x-001.tar")["cached_bytes"] == 7
    for url in (f"{one.source}/q/c.tar", f"{one.source}/pp/a.tar", "s3://nobody/x.tar"):
        shards.write_text(f"{two.source}/x-000.tar\n{url}\n")
        done = run("warmup", "-f", shards, check=False)
        assert done.returncode == 1 and f"'{url}' lies neither in the source of {only.path} nor" in done.stderr, done.stderr
    own = make_mount("own", source=one.source)
    run("link", "add", *endpoint, f"{one.source}/p/d", own.path / "again")
    run("link", "add", *endpoint, two.source, own.path / "two")
    fill(one, ["two/hidden.tar"])
    shards.write_text(f"{one.source}/q/c.tar\n{one.source}/p/d/b.tar\n{two.source}/x-000.tar\n")
    assert totals("-f", shards)["bytes_fetched"] == 17
    assert own.info("again/b.tar")["cached_bytes"] == 5 and own.info("p/d/b.tar")["cached_bytes"] == 0
    shards.write_text(f"{one.source}/two/hidden.tar\n")
    done = run("warmup", "-f", shards, check=False)
    assert done.returncode == 1 and "and of none of their links" in done.stderr, done.stderr
    only.kill()
    shards.write_text("s3://nobody/x.tar\n")
    done = run("warmup", "-f", shards, check=False)
    assert "are not known: its daemon was not reached" in done.stderr, done.stderr
    only.detach()
    for s in (one, two):
        s.remove()


@pytest.mark.parametrize("args,why", [
    (["--nodes", "3/3"], "--nodes '3/3': not I/N"),
    (["--nodes", "1"], "--nodes '1': not I/N"),
    (["--nodes", "a/b"], "--nodes 'a/b': not I/N"),
    (["--download-limit", "fast"], "--download-limit 'fast'"),
    (["--manifest", "tar", "-f", "/dev/null"], "--manifest 'tar': not one of"),
    (["--manifest", "list"], "needs --files-from"),
    (["--base", "/"], "needs --files-from"),
    (["--check", "--evict"], "neither with --evict"),
    (["--check", "-b"], "nor with --background"),
    (["--timeout", "soon"], "--timeout 'soon'"),
    (["--status=x"], "--status 'x': not a number"),
    (["--stop", "0"], "--stop '0': not a number"),
    (["--status", "1", "2"], "take one PATH"),
])
def test_wrong_usage_is_told(mount, args, why):
    done = run("warmup", *args, mount.path, check=False)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_what_cannot_be_read_is_told(mount, base):
    (base / "index.json").write_text('{"weight_map": {"a": ')
    (base / "other.json").write_text('{"a": 1}')
    for args, why in ((["-f", base / "index.json"], "it is no JSON"), (["-f", base / "other.json"], "neither a weight_map nor"),
                      (["-f", base / "none"], "No such file"), (["--stop", 77, mount.path], "no warm-up has the id 77"),
                      (["--status=77", mount.path], "no warm-up has the id 77")):
        done = run("warmup", *args, check=False)
        assert done.returncode == 1 and why in done.stderr, done.stderr
