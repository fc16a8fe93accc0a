"""The daemon's web server by TLS: who may send events and read metrics, certificates that are renewed, clients that say nothing."""
import http.client
import os
import socket
import ssl
import subprocess

import pytest
from cryptography import x509
from identity import HOUR, Identity
from mounts import eventually, run
from test_events import SECRET, Daemon, topic_of


class TlsDaemon(Daemon):
    """Its certificate is in the files web.pem and web.key."""

    def __init__(self, make_mount, base, client_ca=True, **kw):
        self.server_ca = Identity(base, "server-ca", ca=True)
        self.ca = Identity(base, "client-ca", ca=True)
        self.friend = Identity(base, "friend", self.ca)
        self.web_pem, self.web_key = base / "web.pem", base / "web.key"
        self.base = base
        self.renew("first")
        files = {"http_cert": self.web_pem, "http_key": self.web_key, "http_client_ca": self.ca.pem if client_ca else None}
        super().__init__(make_mount, base, **{**files, **kw})

    def renew(self, name):
        """The server has another certificate."""
        self.web = Identity(self.base, name, self.server_ca)
        self.web.write(self.web_pem, self.web_key)

    def context(self, who=None):
        context = ssl.create_default_context(cafile=self.server_ca.pem)
        if who:
            context.load_cert_chain(who.pem, who.key_pem)
        return context

    def connect(self, who=None):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context(who))

    def get(self, where, who=None):
        link = self.connect(who)
        try:
            link.request("GET", where)
            return link.getresponse().status
        finally:
            link.close()

    def shown(self):
        """The certificate that the server shows, None: there is no TLS to be had."""
        link = self.connect()
        try:
            link.connect()
            return x509.load_der_x509_certificate(link.sock.getpeercert(True))
        except OSError:
            return None
        finally:
            link.close()

    def trouble(self):
        return self.mount.status().get("http_trouble")

    def event_is_seen(self, key, **kw):
        """An object that is put, and whose event is sent, appears."""
        os.listdir(self.path)
        self.store.put(key, b"1")
        assert self.post({"Records": [self.record(key)]}, **kw) == 200
        return eventually((self.path / key).exists, 10, 0.005)


def curl(*args):
    return subprocess.run(["curl", "-sS", "-m", "30", "-w", "%{http_code}", "-o", "/dev/null", *map(str, args)], capture_output=True, text=True,
                          timeout=60, check=False)


def test_server_certificate_alone_and_the_secret(make_mount, base):
    daemon = TlsDaemon(make_mount, base, client_ca=False, secret=True)
    assert daemon.get("/healthz") == daemon.get("/metrics") == 200
    assert daemon.event_is_seen("a")
    assert daemon.post({"Records": []}, headers={}) == 401
    with pytest.raises((OSError, http.client.HTTPException)):
        Daemon.connect(daemon).request("GET", "/healthz")
        Daemon.connect(daemon).getresponse()
    plain = curl(f"http://127.0.0.1:{daemon.port}/healthz")
    assert plain.returncode != 0 and plain.stdout == "000"
    assert curl("--cacert", daemon.server_ca.pem, f"https://127.0.0.1:{daemon.port}/healthz").stdout == "200"
    assert curl(f"https://127.0.0.1:{daemon.port}/healthz").returncode == 60  # it does not trust the certificate
    assert eventually(lambda: "without a request" in daemon.mount.log())


def test_client_certificate_is_demanded_but_for_healthz(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=False)
    stranger = Identity(base, "stranger", Identity(base, "other-ca", ca=True))
    expired = Identity(base, "expired", daemon.ca, ends=-HOUR)
    for who in (None, stranger, expired):
        assert daemon.get("/healthz", who) == 200
        assert daemon.get("/metrics", who) == 403
        assert daemon.post({"Records": []}, headers={}, who=who) == 403
    assert daemon.count("refused") == 3
    assert daemon.get("/metrics", daemon.friend) == 200
    assert daemon.event_is_seen("a", headers={}, who=daemon.friend)
    where = f"https://127.0.0.1:{daemon.port}/events"
    by_curl = ["--cacert", daemon.server_ca.pem, "-d", '{"Records": []}', where]
    assert curl(*by_curl).stdout == "403"
    assert curl("--cert", daemon.friend.pem, "--key", daemon.friend.key_pem, *by_curl).stdout == "200"
    assert "expired" in daemon.mount.log()


def test_secret_and_client_certificate_are_both_demanded(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=True)
    assert daemon.post({"Records": []}) == 403
    assert daemon.post({"Records": []}, headers={}, who=daemon.friend) == 401
    assert daemon.post({"Records": []}, headers={"Authorization": "Bearer wrong-wrong-wrong-wrong"}, who=daemon.friend) == 403
    assert daemon.get("/metrics", daemon.friend) == 200
    assert daemon.event_is_seen("a", who=daemon.friend)


def test_renewed_certificates_are_used_without_a_restart(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=False)
    pid = daemon.mount.status()["pid"]
    assert daemon.shown() == daemon.web.cert
    daemon.renew("second")
    assert eventually(lambda: daemon.shown() == daemon.web.cert)
    second, third = daemon.web, Identity(base, "third", daemon.server_ca)
    third.write(cert_file=daemon.web_pem)  # and the key is on its way
    assert eventually(lambda: daemon.shown() == second.cert and daemon.trouble())
    assert str(daemon.web_key) in daemon.trouble() and daemon.trouble() in daemon.mount.log()
    assert daemon.get("/metrics", daemon.friend) == 200
    third.write(key_file=daemon.web_key)
    assert eventually(lambda: daemon.shown() == third.cert)
    assert daemon.trouble() is None and daemon.mount.status()["pid"] == pid


def test_certificates_outlive_takeover_and_upgrade(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=True)
    for n, start_anew in enumerate([daemon.mount.kill_worker, lambda: run("upgrade", daemon.path)]):
        daemon.renew(f"renewed-{n}")
        start_anew()
        assert eventually(lambda: daemon.shown() == daemon.web.cert)
        assert daemon.post({"Records": []}) == 403
        assert daemon.post({"Records": []}, headers={}, who=daemon.friend) == 401
        assert daemon.event_is_seen(f"f{n}", who=daemon.friend)


def test_a_worker_that_finds_unfit_files_serves_once_they_fit(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=False)
    daemon.web_key.rename(base / "away")
    assert daemon.mount.kill_worker()
    assert eventually(daemon.trouble)
    assert "nobody is served" in daemon.trouble() and daemon.shown() is None
    (base / "away").rename(daemon.web_key)
    assert eventually(lambda: daemon.shown() == daemon.web.cert)
    assert daemon.get("/metrics") == 403 and daemon.get("/metrics", daemon.friend) == 200 and daemon.trouble() is None


def test_silent_clients_hold_up_nobody(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=False)
    mute = [socket.create_connection(("127.0.0.1", daemon.port), 30) for _ in range(40)]
    for s in mute[::2]:
        s.sendall(bytes([22, 3, 1, 2, 0, 1]))  # the head of a greeting
    assert daemon.event_is_seen("a", headers={}, who=daemon.friend)
    assert daemon.get("/healthz") == 200
    for s in mute:
        s.settimeout(60)
        while s.recv(100):  # until it is closed
            pass
        s.close()
    mute = [socket.create_connection(("127.0.0.1", daemon.port), 30) for _ in range(40)]
    daemon.mount.umount()
    for s in mute:
        s.close()


def test_options_are_checked(make_mount, store, base):
    cert, other = Identity(base, "web"), Identity(base, "other")
    empty, locked = base / "empty.pem", base / "locked.key"
    empty.touch(0o600)
    subprocess.run(["openssl", "pkey", "-in", cert.key_pem, "-aes256", "-passout", "pass:word", "-out", locked], check=True, timeout=60)
    locked.chmod(0o600)
    readable = base / "readable.key"
    readable.write_bytes(cert.key_pem.read_bytes())
    readable.chmod(0o644)
    good = {"http": "127.0.0.1:1", "http_cert": cert.pem, "http_key": cert.key_pem, "http_client_ca": cert.pem}
    bad = [({"http": None}, "--http"), ({"http_cert": None}, "--http-cert"), ({"http_key": None}, "--http-key"),
           ({"http_cert": None, "http_key": None}, "--http-cert"), ({"http_cert": empty}, f"http-cert '{empty}'"),
           ({"http_cert": base / "none"}, f"http-cert '{base}/none'"), ({"http_key": empty}, f"http-key '{empty}'"),
           ({"http_key": locked}, f"http-key '{locked}'"), ({"http_key": readable}, "chmod 600"),
           ({"http_key": other.key_pem}, f"http-key '{other.key_pem}'"), ({"http_client_ca": empty}, f"http-client-ca '{empty}'")]
    if store.kind == "file":
        bad.append(({"http_key": store.root / "web.key"}, "which would show it"))
    for change, said in bad:
        m = make_mount(start=False, **{**good, **change})
        done = run(*m.arguments(), env=m.env, check=False)
        assert done.returncode == 2 and said in done.stderr, (change, done.returncode, done.stderr)
        assert not m.is_mounted()


def test_files_may_be_named_from_where_the_mount_is_made_and_in_a_config_file(make_mount, base):
    daemon = TlsDaemon(make_mount, base, secret=False)
    m = daemon.mount
    m.umount()
    config = base / "tls.conf"
    config.write_text("http-cert = web.pem\nhttp-key = web.key\nhttp-client-ca = client-ca.pem\n")
    run(*m.arguments({"http_cert": None, "http_key": None, "http_client_ca": None, "config": config}), env=m.env, cwd=base)
    assert daemon.get("/metrics") == 403 and daemon.get("/metrics", daemon.friend) == 200
    daemon.renew("second")
    assert eventually(lambda: daemon.shown() == daemon.web.cert)


@pytest.mark.ceph
def test_gateway_pushes_by_https(make_mount, base):
    """Such a gateway shows no certificate. Ours it checks against what its host trusts, unless it is told not to."""
    daemon = TlsDaemon(make_mount, base, client_ca=False, secret=True)
    assert os.listdir(daemon.path) == []
    endpoint = f"https://127.0.0.1:{daemon.port}/events?token={SECRET}"
    with topic_of(daemon, endpoint):
        daemon.store.put("d/e", b"1")
        assert eventually(lambda: "without a request" in daemon.mount.log())
        assert daemon.count("received") == 0
    with topic_of(daemon, endpoint, {"verify-ssl": "false"}):
        daemon.store.put("d/f", b"1")
        assert eventually((daemon.path / "d/f").exists, 10, 0.005), daemon.mount.log()[-2000:]
    assert daemon.count("applied") >= 1
