"""Small files opened one after another: what comes next is fetched before it is asked for, nothing else is. Proven by counts."""
import os
import random
import threading
import time

import pytest
from mounts import MIB, eventually, run
from test_passthrough import blob

SLOW = "op=get,action=delay:20ms"


def put_files(store, n, size=20_000, where="d"):
    files = {f"{where}/{i:04}.jpg": blob(i, size + i) for i in range(n)}
    for key, data in files.items():
        store.put(key, data)
    return files


def read_all(m, files, keys=None):
    for key in keys or sorted(files):
        assert (m.path / key).read_bytes() == files[key], key


def counts(m):
    s = m.status()
    return s["prefetched_files"], s["prefetch_used_files"], s["prefetch_wasted_files"]


def test_files_read_in_listing_order_are_there_before_they_are_opened(make_mount, store):
    files = put_files(store, 200)
    m = make_mount(fault=SLOW)
    read_all(m, files)
    fetched, used, wasted = counts(m)
    assert fetched >= 190 and used >= fetched - 3 and wasted == 0, "a file may be opened in the moment it is asked for"
    s = m.status()
    assert s["downloaded_bytes"] == sum(map(len, files.values())), "no byte twice"
    assert s["requests"]["get"] == len(files)
    read_all(m, files)
    assert counts(m) == (fetched, used, wasted), "a warm pass asks for nothing"


def test_the_next_directory_is_there_when_the_reader_comes(make_mount, store):
    files = {key: data for i in range(8) for key, data in put_files(store, 30, where=f"all/{i}").items()}
    put_files(store, 30, where="all/9/deep")
    store.put("all/8", b"no directory")
    m = make_mount(fault=SLOW, metadata_ttl="1h")
    read_all(m, files)
    fetched, used, wasted = counts(m)
    assert fetched >= 8 * 30 - 3 - 2 - 2, "but for the first ones of the first two directories; without going on 8 times as many"
    assert used >= fetched - 12 and wasted == 0
    s = m.status()
    assert s["requests"]["get"] == len(files), "nothing twice, and nothing below the last one"
    assert eventually(lambda: m.info("all/9").get("listed")), "the reader was expected there"


def test_a_directory_is_not_listed_on_a_guess(make_mount, store):
    files = put_files(store, 100, where="all/0")
    put_files(store, 30, where="all/1")
    m = make_mount(fault=SLOW, metadata_ttl="1h")
    read_all(m, files)
    assert counts(m)[0] >= 90
    time.sleep(1)  # for what should not come
    assert not m.info("all/1").get("listed")
    assert len(os.listdir(m.path / "all/1")) == 30
    run("evict", m.path / "all/0")
    read_all(m, files)
    assert eventually(lambda: m.info("all/1/0000.jpg")["cached_bytes"] > 0), "its names are known now"


def test_an_immutable_mount_prefetches_too(make_mount, store):
    files = put_files(store, 100)
    m = make_mount(fault=SLOW, immutable=True, metadata_ttl=None, negative_ttl=None)
    read_all(m, files)
    assert counts(m)[0] >= 90
    assert m.status()["requests"]["get"] == len(files)


def test_files_that_the_kernel_knows_from_reading_the_directory_are_prefetched_too(make_mount, store):
    files = put_files(store, 100)
    m = make_mount(fault=SLOW, metadata_ttl="1h")
    assert len(os.listdir(m.path / "d")) == 100
    m.remount()
    assert len(os.listdir(m.path / "d")) == 100
    read_all(m, files)
    assert counts(m)[0] >= 90


def test_nothing_is_fetched_for_one_open_nor_for_random_ones(make_mount, store):
    files = put_files(store, 400)
    m = make_mount()
    keys = sorted(files)
    read_all(m, files, keys[7:8])
    assert counts(m)[0] == 0
    read_all(m, files, random.Random(7).sample(keys, 100))
    assert counts(m)[0] <= 20


def test_prefetch_off(make_mount, store):
    files = put_files(store, 40)
    m = make_mount(prefetch="off")
    read_all(m, files)
    assert counts(m) == (0, 0, 0)


def test_large_files_and_directories_in_between_are_left_alone(make_mount, store):
    files = put_files(store, 30)
    for i in range(10, 20):
        store.put(f"d/{i:04}.jpg.big", blob(f"b{i}", 2 * MIB))
        store.put(f"d/{i:04}.sub/x", b"x")
    m = make_mount(open_fill="1M", fault=SLOW)
    read_all(m, files)
    assert counts(m)[0] >= 10
    assert m.status()["downloaded_bytes"] == sum(map(len, files.values()))


def test_the_order_of_the_last_pass_is_learned(make_mount, store):
    files = put_files(store, 300)
    order = sorted(files)
    random.Random(3).shuffle(order)
    m = make_mount(fault=SLOW)
    read_all(m, files, order[:100])
    first = counts(m)[0]
    run("evict", m.path / "d", check=False)
    read_all(m, files, order[:100])
    fetched, used, _ = counts(m)
    assert first <= 10 and used >= 80, (first, fetched, used)


def test_a_reader_that_stops_costs_little_and_an_unmount_does_not_wait(make_mount, store):
    files = put_files(store, 300)
    m = make_mount(fault="op=get,action=delay:200ms")
    read_all(m, files, sorted(files)[:12])
    assert counts(m)[0] <= 60
    m.umount()


def test_what_is_fetched_ahead_is_bounded_by_the_cache(make_mount, store):
    files = put_files(store, 60, MIB)
    m = make_mount(cache_size="64M", part_size="5M", fault=SLOW)
    ahead = 0
    for key in sorted(files):
        assert (m.path / key).read_bytes() == files[key]
        fetched, used, wasted = counts(m)
        ahead = max(ahead, fetched - used - wasted)
    assert 1 <= ahead <= 4, "1/16 of 64 MiB"


def test_a_warm_up_goes_in_the_order_of_its_list_ahead_of_the_reader(make_mount, store, base):
    files = put_files(store, 60)
    order = sorted(files)
    random.Random(9).shuffle(order)
    listing = base / "list"
    listing.write_text("".join(f"{key}\n" for key in order))
    m = make_mount(prefetch="off", fault=SLOW)
    os.listdir(m.path / "d")
    work = threading.Thread(target=run, args=("warmup", "--parallel", 2, "--files-from", listing), kwargs={"cwd": m.path})
    work.start()
    arrived = []
    while work.is_alive():
        here = [m.info(key)["cached_bytes"] > 0 for key in reversed(order)][::-1]  # so that what comes later in the list is looked at first
        arrived.append(here)
        if sum(here) > 20:
            break
    read_all(m, files, order)
    work.join()
    for here in arrived:
        last = max((i for i, there in enumerate(here) if there), default=0)
        assert all(here[:max(last - 2, 0)]), "all before it are there, but for what runs at the same time"
    assert m.status()["downloaded_bytes"] == sum(map(len, files.values())), "reader and warm-up share each GET"
