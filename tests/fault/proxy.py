"""A proxy before the gateway that understands S3 requests and spoils the ones it is told to.

    with FaultProxy("127.0.0.1:8000") as proxy:
        proxy.rule("put", error(503, "SlowDown"), times=2)     # the first two PUTs of objects
        proxy.rule("get", reset_body(1000), key="big", prob=0.1)
        ... a program uses proxy.url ...
        proxy.heal()
        assert proxy.count("put", key="f") == 3

A rule names the kind of request (KINDS, or "any"), perhaps the key, and an action; the first rule that fits and is not used up is applied, and
what no rule fits is passed on unchanged. An action is a function of an Exchange: it looks at the request, may ask the gateway, and says
what the client gets. Actions are threads of their own: they may wait.
"""
import collections
import ctypes
import errno
import http.client
import random
import select
import socket
import struct
import threading
import time
import urllib.parse

KINDS = ("list", "uploads", "parts", "put", "copy", "get", "head", "delete", "create", "part", "part_copy", "complete", "abort")
HEADS_CAP = 65536
LOG_CAP = 1 << 17  # requests that are remembered
PORTS = range(20000, 32000)  # below what the kernel gives to clients: a port that was closed for a while is still free


LIBC = ctypes.CDLL(None, use_errno=True)


def disconnect(sock):
    """RST, now, also while another thread waits for the socket, whose shutdown would be a FIN."""
    if LIBC.connect(sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16):
        raise OSError(ctypes.get_errno(), "a connection could not be reset")


def listen(address, port=0, **how):
    """On that port, or on any that is free."""
    while True:
        try:
            return socket.create_server((address, port or random.choice(PORTS)), **how)
        except OSError as e:
            if port or e.errno != errno.EADDRINUSE:
                raise


class Request:
    """One request as it came. key is unquoted, without the bucket; "" for requests on the bucket."""

    def __init__(self, head):
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ", 2)
        self.headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]
        path, _, query = self.target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.bucket, _, key = path[1:].partition("/")
        self.key = urllib.parse.unquote(key)
        self.body = b""
        self.kind = self._kind()

    def _kind(self):
        q, m = self.query, self.method
        if not self.key:
            return "uploads" if "uploads" in q else "list"
        if "uploadId" in q:
            if m == "PUT":
                return "part_copy" if self.header("x-amz-copy-source") else "part"
            return {"POST": "complete", "DELETE": "abort"}.get(m, "parts")
        if "uploads" in q:
            return "create"
        if m == "PUT":
            return "copy" if self.header("x-amz-copy-source") else "put"
        return m.lower()

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def set(self, name, value):
        """Replaces a header; None takes it away."""
        self.headers = [(k, v) for k, v in self.headers if k.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))

    def head(self):
        text = f"HTTP/1.1 {self.status} Status\r\n" + "".join(f"{k}: {v}\r\n" for k, v in self.headers)
        return (text + "\r\n").encode("latin-1")


class Closed(Exception):
    """The exchange is over and so is the connection."""


class Exchange:
    """A request on its connection, in the hands of an action."""

    def __init__(self, proxy, sock, request, rest):
        self.proxy, self.sock, self.request, self.rest = proxy, sock, request, rest
        self.read = len(rest) if self.content_length() else 0

    def content_length(self):
        return int(self.request.header("Content-Length") or 0)

    def take(self, n):
        """The first n bytes of the body; the rest stays unread on the connection."""
        want = min(n, self.content_length())
        while len(self.request.body) < want:
            if self.rest:
                more, self.rest = self.rest[:want - len(self.request.body)], self.rest[want - len(self.request.body):]
            else:
                more = self.sock.recv(min(1 << 20, want - len(self.request.body)))
            if not more:
                raise Closed
            self.request.body += more

    def take_all(self):
        self.take(self.content_length())

    def ask(self):
        """What the gateway says to the request."""
        self.take_all()
        return self.proxy.ask(self.request)

    def send(self, reply):
        """A whole reply; the connection stays."""
        self.take_all()
        with_body = self.request.method != "HEAD"
        self.sock.sendall(reply.head() + (reply.body if with_body else b""))

    def end(self):
        """FIN."""
        raise Closed

    def reset(self):
        """RST: what was sent and not yet read by the client may be lost with it."""
        self.proxy.reset(self.sock)
        raise Closed

    def hang(self, seconds=None):
        """Silence until that long passed, the rules are taken away, or the client goes. True while the client is there."""
        until = time.monotonic() + (seconds if seconds is not None else 1e9)
        generation = self.proxy.generation
        while time.monotonic() < until and generation == self.proxy.generation:
            readable, _, _ = select.select([self.sock], [], [], 0.05)
            if readable and not self.sock.recv(1, socket.MSG_PEEK):
                raise Closed
        return True


class Rule:
    def __init__(self, kind, action, key, times, prob, after):
        self.kind, self.action, self.key, self.times, self.prob, self.after = kind, action, key, times, prob, after
        self.n_fitting = self.n_used = 0

    def fits(self, request, rng):
        kinds = self.kind if isinstance(self.kind, tuple) else (self.kind,)
        if "any" not in kinds and request.kind not in kinds:
            return False
        if self.key is not None and not (self.key(request) if callable(self.key) else request.key == self.key):
            return False
        self.n_fitting += 1
        if self.n_fitting <= self.after or (self.times is not None and self.n_used >= self.times):
            return False
        if self.prob < 1 and rng.random() >= self.prob:
            return False
        self.n_used += 1
        return True


class FaultProxy:
    def __init__(self, upstream, tls=None, address="127.0.0.1", seed=1):
        self.upstream, self.tls, self.address = upstream, tls, address
        self.rng = random.Random(seed)
        self.mu = threading.Lock()
        self.rules, self.log, self.sockets = [], collections.deque(maxlen=LOG_CAP), set()
        self.generation = 0
        self.refusing = 0
        self.n_connections = self._n_resets = 0
        self.signer = None
        self.local = threading.local()
        self.listener = None
        self.open(0)

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://{self.address}:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, port, address=None):
        """Listens (again) there."""
        self.address = address or self.address
        self.listener = listen(self.address, port, backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def close(self):
        """Nothing listens there any more."""
        self.heal()
        if self.listener:
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            self.listener.close()
            self.listener = None
        self.cut()

    def rule(self, kind, action, key=None, times=1, prob=1.0, after=0):
        """times=None: for ever; after: so many fitting requests go through first. key: text, or a function of the request."""
        assert kind == "any" or all(k in KINDS for k in ([kind] if isinstance(kind, str) else kind)), kind
        made = Rule(kind, action, key, times, prob, after)
        with self.mu:
            self.rules.append(made)
        return made

    def heal(self):
        """No rule any more; what hangs goes on."""
        with self.mu:
            self.rules.clear()
            self.generation += 1
            self.refusing = 0

    def refuse(self, n):
        """The next n connections are reset as soon as they stand."""
        with self.mu:
            self.refusing = n

    def cut(self):
        """Resets every connection that stands."""
        with self.mu:
            standing = list(self.sockets)
        for sock in standing:
            try:
                self.reset(sock)
            except OSError:
                pass  # it has just ended

    def reset(self, sock):
        with self.mu:
            disconnect(sock)
            self._n_resets += 1

    @property
    def n_resets(self):
        with self.mu:
            return self._n_resets

    def requests(self, kind=None, key=None):
        with self.mu:
            return [r for r in self.log if kind in (None, r.kind) and key in (None, r.key)]

    def count(self, kind=None, key=None):
        return len(self.requests(kind, key))

    def sign_as(self, access_key, secret_key):
        """From now on the gateway sees requests signed with these keys, now and for its own name; whose keys and clock the client has, only the proxy knows."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        def sign(request):
            drop = ("host", "authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256", "content-length")
            made = AWSRequest(request.method, f"http://{self.upstream}{request.target}", data=request.body,
                              headers={k: v for k, v in request.headers if k.lower() not in drop})
            S3SigV4Auth(Credentials(access_key, secret_key), "s3", "us-east-1").add_auth(made)
            headers = [("Host", self.upstream), *made.headers.items()]
            return headers + [("Content-Length", request.header("Content-Length"))] * (request.header("Content-Length") is not None)
        self.signer = sign

    def ask(self, request):
        """Over a kept connection of this thread; again over another one when the gateway ended that."""
        for fresh in (False, True):
            conn = getattr(self.local, "conn", None)
            if conn is None or fresh:
                host, port = self.upstream.split(":")
                conn = self.local.conn = http.client.HTTPConnection(host, int(port), timeout=120)
            try:
                conn.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
                for name, value in self.signer(request) if self.signer else request.headers:
                    conn.putheader(name, value)
                conn.endheaders(request.body or None)
                got = conn.getresponse()
                body = got.read()
                headers = [(k, v) for k, v in got.getheaders() if k.lower() not in ("transfer-encoding", "connection", "keep-alive")]
                if not any(k.lower() == "content-length" for k, _ in headers) and got.status != 204:
                    headers.append(("Content-Length", str(len(body))))
                return Reply(got.status, headers, body)
            except (http.client.RemoteDisconnected, ConnectionError):
                conn.close()
                self.local.conn = None
                if fresh:
                    raise
        raise AssertionError

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with self.mu:
                self.n_connections += 1
                refused = self.refusing > 0
                self.refusing -= refused
            if refused:
                self.reset(sock)
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _action(self, request):
        with self.mu:
            self.log.append(request)
            return next((rule.action for rule in self.rules if rule.fits(request, self.rng)), pass_on)

    def _serve(self, sock):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                sock = self.tls.wrap_socket(sock, server_side=True)
            with self.mu:
                self.sockets.add(sock)
            rest = b""
            while True:
                head, rest = self._head(sock, rest)
                exchange = Exchange(self, sock, Request(head), rest)
                try:
                    self._action(exchange.request)(exchange)
                    exchange.take_all()
                finally:
                    exchange.request.body = b""  # the log keeps requests, not what they carried
                rest = exchange.rest
        except (Closed, OSError, ValueError, http.client.HTTPException):
            pass
        finally:
            with self.mu:
                self.sockets.discard(sock)
            sock.close()

    @staticmethod
    def _head(sock, rest):
        while b"\r\n\r\n" not in rest:
            more = sock.recv(65536)
            if not more or len(rest) > HEADS_CAP:
                raise Closed
            rest += more
        head, _, rest = rest.partition(b"\r\n\r\n")
        return head, rest


def pass_on(x):
    x.send(x.ask())


def error_xml(code):
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><RequestId>r-1</RequestId></Error>'.encode()


def answer(status, body=b"", **headers):
    """This reply, without asking the gateway. Names of headers: underscores are dashes."""
    def act(x):
        rows = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if "content_length" not in {name.lower() for name in headers}:
            rows.append(("Content-Length", str(len(body))))
        x.send(Reply(status, rows, body))
    return act


def error(status, code, **headers):
    """The store's own error reply."""
    return answer(status, error_xml(code), Content_Type="application/xml", x_amz_request_id="r-1", **headers)


def lost(x):
    """The gateway does it, nobody hears of it."""
    x.ask()
    x.reset()


def lost_quietly(x):
    """The same, with an end of the connection as a proxy makes it that was restarted."""
    x.ask()
    x.end()


def reset_before(x):
    x.reset()


def reset_upload(n):
    """RST after n bytes of the request's body; the gateway hears nothing."""
    def act(x):
        x.take(n)
        x.reset()
    return act


def reset_head(n=20):
    def act(x):
        x.sock.sendall(x.ask().head()[:n])
        time.sleep(0.02)
        x.reset()
    return act


def body_part(n, then):
    """The head and n bytes of the body, at most all but one, then a method of the exchange."""
    def act(x):
        reply = x.ask()
        x.sock.sendall(reply.head() + reply.body[:max(0, min(n, len(reply.body) - 1))])
        time.sleep(0.02)
        getattr(x, then)()
        x.end()
    return act


def reset_body(n):
    return body_part(n, "reset")


def short_body(n):
    return body_part(n, "end")


def stall_body(n):
    return body_part(n, "hang")


def silence(x):
    """The request is read, never answered; goes on where it was after heal()."""
    x.take_all()
    x.hang()
    x.end()


def late(seconds):
    """The gateway's reply, that much later (or at heal())."""
    def act(x):
        reply = x.ask()
        x.hang(seconds)
        x.send(reply)
    return act


class CarriedOutLater:
    """An action: no reply (with hang: the connection stands for as long as the client wants), and the gateway is asked when carry_out() says so."""

    def __init__(self, hang=False):
        self.hang, self.request, self.proxy = hang, None, None

    def __call__(self, x):
        x.take_all()
        self.proxy, self.request = x.proxy, x.request
        if self.hang:
            x.hang()
        x.end()

    def carry_out(self):
        return self.proxy.ask(self.request).status


def trickle(bytes_a_second=1, burst=0):
    """The reply's body byte by byte."""
    def act(x):
        reply = x.ask()
        x.sock.sendall(reply.head() + reply.body[:burst])
        for i in range(burst, len(reply.body)):
            x.hang(1 / bytes_a_second)
            x.sock.sendall(reply.body[i:i + 1])
    return act


def edit(change):
    """The gateway's reply after change(reply, request); the Content-Length follows the body unless it was touched too."""
    def act(x):
        reply = x.ask()
        length = reply.header("Content-Length")
        change(reply, x.request)
        if x.request.method != "HEAD" and reply.header("Content-Length") == length and length is not None:
            reply.set("Content-Length", str(len(reply.body)))
        x.send(reply)
    return act


def first(do):
    """do(request) is done before the request is passed on."""
    def act(x):
        do(x.request)
        pass_on(x)
    return act


def set_header(name, value):
    return edit(lambda reply, _: reply.set(name, value))


def keep_alive(seconds):
    """White space while the store works, then its reply."""
    def act(x):
        x.take_all()
        x.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(seconds * 4):
            x.sock.sendall(b"1\r\n \r\n")
            time.sleep(0.25)
        body = x.ask().body
        x.sock.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    return act


WRONG_BODIES = {
    "short": short_body(100000),
    "reset": reset_body(100000),
    "longer than it said": edit(lambda reply, _: setattr(reply, "body", reply.body + b"surplus")),
    "whole object for a range": edit(lambda reply, _: (setattr(reply, "status", 200), reply.set("Content-Range", None))),
    "wrong range": set_header("Content-Range", "bytes 0-9/99999999"),
    "range of nothing": set_header("Content-Range", "rubbish"),
}


def part_number(n):
    """A key for rules."""
    return lambda request: request.query.get("partNumber") == str(n)
