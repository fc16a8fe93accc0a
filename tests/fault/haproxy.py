"""A haproxy before the gateway, as real lakes have one: it can be away."""
import socket
import subprocess

from mounts import eventually
from proxy import listen

CONFIG = """
global
    maxconn 2000
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend s3
    bind 127.0.0.1:{port}
    default_backend gateway
backend gateway
    http-reuse always
    server s1 {upstream}
"""


class Haproxy:
    def __init__(self, where, upstream):
        with listen("127.0.0.1") as free:
            self.port = free.getsockname()[1]
        self.config, self.log = where / "haproxy.cfg", where / "haproxy.log"
        self.config.write_text(CONFIG.format(port=self.port, upstream=upstream))
        self.url = f"http://127.0.0.1:{self.port}"
        self.child = None

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        except OSError:
            return False

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(["/usr/sbin/haproxy", "-db", "-f", self.config], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        assert eventually(self.answers, 10), self.log.read_text()
        return self

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait(20)
            self.child = None
