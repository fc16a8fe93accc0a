"""Listings: pages that lie, repeat or never end, and XML that attacks."""
import bisect
import contextlib
import errno
import os
import pathlib
import re
import time

import proxy as p
import pytest
from mounts import NIGHT, eventually, in_thread

pytestmark = pytest.mark.ceph
NS = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


def row(key, size=1):
    return (f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e-{key}&quot;</ETag>"
            f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>").encode()


def page(rows, token=None, truncated=None):
    truncated = bool(token) if truncated is None else truncated
    return (b'<?xml version="1.0" encoding="UTF-8"?>' + NS + b"<Name>b</Name><Prefix></Prefix><EncodingType>url</EncodingType>" +
            b"<IsTruncated>" + (b"true" if truncated else b"false") + b"</IsTruncated>" + b"".join(rows) +
            (f"<NextContinuationToken>{token}</NextContinuationToken>".encode() if token else b"") + b"</ListBucketResult>")


def xml(body):
    return p.answer(200, body, Content_Type="application/xml", x_amz_request_id="r-1")


def of_dir(name):
    return lambda request: request.query.get("prefix", "").startswith(name + "/")


def names_or_error(path):
    try:
        return set(os.listdir(path))
    except OSError as e:
        return e.errno


@pytest.fixture
def listed(make_lake):
    """A mount with the directory d, which holds f, not yet listed."""
    lake = make_lake(op_timeout="5s")
    lake.write("ready", b"1")
    lake.wait()
    lake.put("d/f", b"in d")
    assert eventually(lambda: "d" in os.listdir(lake.path), 10)
    return lake


LIES = {
    "truncated, and no token": lambda n: page([row("d/a")], truncated=True),
    "the same token again": lambda n: page([], token="same"),
    "the same page again": lambda n: page([row("d/a"), row("d/b")], token=f"t{n}"),
    "backwards": lambda n: page([row(f"d/{9999 - n:04}")], token=f"t{n}"),
    "cut in the middle": lambda n: page([row("d/a")])[:-30],
    "another prefix": lambda n: page([row("elsewhere/a")]),
    "no listing": lambda n: b"<html><body>Welcome</body></html>",
    "entities": lambda n: b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
                          + page([row("d/&b;")])[38:],
    "a file of this machine": lambda n: b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
                                        + page([row("d/&x;")])[38:],
    "not UTF-8": lambda n: page([row("d/a")]).replace(b"d/a", b"d/\xff\xfe"),
    "more rows than any store gives": lambda n: page([b"<Contents><Key>d/%06d</Key></Contents>" % i for i in range(190000)]),
    "too deep": lambda n: b'<?xml version="1.0"?>' + b"<a>" * 100000,
}


@pytest.mark.parametrize("lie", LIES)
def test_listing_that_lies(listed, lie):
    """An error, and soon; nothing that it says is shown, nothing known is forgotten."""
    counter = iter(range(10 ** 9))
    listed.proxy.rule("list", lambda x: xml(LIES[lie](next(counter)))(x), key=of_dir("d"), times=None)
    with little_memory(listed):
        got = listed.in_time(lambda: names_or_error(listed.path / "d"))
    assert got in (errno.EIO, errno.EBADMSG, errno.ETIMEDOUT), got
    assert listed.proxy.count("list") < 1100
    listed.proxy.heal()
    assert eventually(lambda: names_or_error(listed.path / "d") == {"f"}, 10)


@contextlib.contextmanager
def little_memory(lake):
    """At no moment of it had the worker 32 MiB more than at its begin."""
    proc = pathlib.Path(f"/proc/{lake.status('pid')}")

    def kib(what):
        return int(re.search(rf"{what}:\s+(\d+)", (proc / "status").read_text())[1])
    (proc / "clear_refs").write_text("5")  # the peak is what there is now
    before = kib("VmRSS")
    yield
    assert kib("VmHWM") - before < 32 << 10, (before, kib("VmHWM"))


def test_listing_without_an_end(listed):
    """A gigabyte of one page is not taken in."""
    def endless(x):
        x.take_all()
        x.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        x.sock.sendall(page([row("d/a")])[:-40])
        for i in range(1 << 14):
            x.sock.sendall(b"".join(row(f"d/b{i:05}-{k:04}") for k in range(400)))
    rule = listed.proxy.rule("list", endless, key=of_dir("d"), times=None)
    with little_memory(listed):
        got = listed.in_time(lambda: names_or_error(listed.path / "d"))
    assert got in (errno.EIO, errno.EBADMSG, errno.ETIMEDOUT), got
    assert rule.n_used >= 1
    listed.proxy.heal()
    assert eventually(lambda: names_or_error(listed.path / "d") == {"f"}, 10)


def test_page_cut_once_is_asked_again(listed):
    rule = listed.proxy.rule("list", p.short_body(150), key=of_dir("d"))
    assert names_or_error(listed.path / "d") == {"f"}
    assert rule.n_used == 1


def test_empty_pages_before_the_rows(listed):
    """As some stores give them behind many deleted keys."""
    n = 100
    pages = [page([], token=f"t{i}") for i in range(n)]

    def give(x):
        token = x.request.query.get("continuation-token")
        i = int(token[1:]) + 1 if token else 0
        if i < n:
            xml(pages[i])(x)
        else:
            xml(page([row("d/f", 4), row("d/g", 1)]))(x)
    listed.proxy.rule("list", give, key=of_dir("d"), times=None)
    assert names_or_error(listed.path / "d") == {"f", "g"}
    listed.proxy.heal()
    assert eventually(lambda: names_or_error(listed.path / "d") == {"f"}, 10)


class Huge:
    """A directory of many objects that exists in replies only. Some are deleted while it is listed."""

    def __init__(self, n):
        self.n, self.gone = n, set()

    def __call__(self, x):
        q = x.request.query
        after = q.get("continuation-token") or q.get("start-after", "")[2:]
        first = bisect.bisect_right(range(self.n), after, key="{:07}".format)
        rows, i = [], first
        most = min(1000, int(q.get("max-keys", "1000")))
        while len(rows) < most and i < self.n:
            if i not in self.gone:
                rows.append(row(f"d/{i:07}"))
            i += 1
        self.gone.update(range(first, self.n, 997))  # behind what was given, and before it
        xml(page(rows, token=f"{i - 1:07}" if i < self.n else None))(x)


def test_huge_directory_that_shrinks_while_it_is_listed(listed):
    huge = Huge(1000000 if NIGHT else 50000)
    listed.proxy.rule("list", huge, key=of_dir("d"), times=None)
    found = in_thread(lambda: os.listdir(listed.path / "d"))(200)
    assert len(found) == len(set(found)), "a name came twice"
    missing = {f"{i:07}" for i in range(huge.n)} - set(found)
    assert missing <= {f"{i:07}" for i in huge.gone}, "a name was left out"
    assert missing and huge.gone, "nothing was removed meanwhile"
    assert set(found) & {f"{i:07}" for i in huge.gone}, "all was removed before it was listed"
    listed.proxy.heal()
    time.sleep(1.1)
    assert eventually(lambda: names_or_error(listed.path / "d") == {"f"}, 60)
