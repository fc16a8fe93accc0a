"""The proxy itself: what it calls a reset is one, and what it calls an end is none. Needs no gateway."""
import socket

import proxy as p
import pytest
from mounts import eventually, in_thread

GET = b"GET /bucket/key HTTP/1.1\r\nHost: lake\r\n\r\n"
PUT = b"PUT /bucket/key HTTP/1.1\r\nHost: lake\r\nContent-Length: 1000\r\n\r\n" + bytes(1000)
BODY = b"x" * 1000


@pytest.fixture
def front():
    with p.FaultProxy("127.0.0.1:1") as made:
        made.ask = lambda _: p.Reply(200, [("Content-Length", str(len(BODY)))], BODY)
        yield made


def talk(front, request):
    """What came, and whether a reset ended it."""
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", front.port), timeout=20) as sock:
            sock.sendall(request)
            while more := sock.recv(65536):
                got += more
    except ConnectionError:  # EPIPE: it was reset before all was sent
        return got, True
    return got, False


HEAD = b"HTTP/1.1 200 Status\r\nContent-Length: 1000\r\n\r\n"
RESETS = {
    "before": (GET, p.reset_before, b""),
    "in a request's body": (PUT, p.reset_upload(100), b""),
    "in place of a reply": (PUT, p.lost, b""),
    "in a reply's head": (GET, p.reset_head(20), HEAD[:20]),
    "in a reply's body": (GET, p.reset_body(100), HEAD + BODY[:100]),
    "at a body's last byte": (GET, p.reset_body(100000), HEAD + BODY[:999]),
}


@pytest.mark.parametrize("where", RESETS)
def test_a_reset_is_one(front, where):
    request, action, came = RESETS[where]
    front.rule("any", action)
    assert talk(front, request) == (came, True)
    assert front.n_resets == 1


def test_connections_that_stand_are_reset(front):
    front.rule("any", p.silence)
    join = in_thread(lambda: talk(front, GET))
    assert eventually(front.count, 20)
    front.cut()
    assert join(20) == (b"", True)
    assert front.n_resets == 1


def test_connections_that_come_are_reset(front):
    front.refuse(1)
    assert talk(front, GET) == (b"", True)
    assert front.n_resets == 1
    front.rule("any", p.lost_quietly)
    assert talk(front, GET) == (b"", False), "the next one is not"


ENDS = {"in place of a reply": (p.lost_quietly, b""), "in a body": (p.short_body(100), HEAD + BODY[:100]),
        "at a body's last byte": (p.short_body(100000), HEAD + BODY[:999])}


@pytest.mark.parametrize("where", ENDS)
def test_an_end_is_no_reset(front, where):
    action, came = ENDS[where]
    front.rule("any", action)
    assert talk(front, GET) == (came, False)
    assert front.n_resets == 0
