"""A relay of TCP connections that flips bits on the way, as a bad link does whose checksums let it pass.

    with Relay(port) as relay:
        ... a program uses 127.0.0.1:relay.port ...
        relay.flip_every = 50000      # of what the server sends, on each connection a bit of each so many bytes
        relay.flip_every = None
"""
import contextlib
import socket
import threading

from proxy import listen


class Relay:
    def __init__(self, port):
        self.to, self.flip_every, self.n_flipped = port, None, 0
        self.listener = listen("127.0.0.1", backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to))
                for args in ((client, server, lambda data: data), (server, client, self._spoiler())):
                    threading.Thread(target=self._pass_on, args=args, daemon=True).start()

    def _spoiler(self):
        """For what comes on one connection, counted from when flip_every was set."""
        was, left = None, 0

        def spoil(data):
            nonlocal was, left
            every = self.flip_every
            if every != was:
                was = left = every
            if every is None:
                return data
            data = bytearray(data)
            at = left
            while at < len(data):
                data[at] ^= 0x10
                self.n_flipped += 1
                at += every
            left = at - len(data)
            return data
        return spoil

    @staticmethod
    def _pass_on(source, sink, change):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                sink.sendall(change(data))
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
