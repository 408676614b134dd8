"""A TCP proxy that misbehaves on request: refuses, hangs, answers 500, or cuts a connection in the middle of a file."""

from __future__ import annotations

import contextlib
import socket
import threading

PIECE = 65_536
HEAD_500 = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
BODY_500 = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class Proxy:
    """Forwards connections on `port` to `target`; `mode` is `pass`, `down`, `hang`, `500`, `cut-upload` or `cut-download`.

    `hits` counts the connections that met a fault.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target, self.mode, self.hits = target, "pass", 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str) -> None:
        """Change the behaviour; connections that are open are cut, for a client would keep using them."""
        self.mode = mode
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.set("down")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            if self.mode == "down":
                self.hits += 1
                return
            if self.mode == "500":
                self.hits += 1
                asked = client.recv(PIECE)
                client.sendall(HEAD_500 % len(BODY_500) + (b"" if asked.startswith(b"HEAD") else BODY_500))
                client.shutdown(socket.SHUT_WR)
                while client.recv(PIECE):  # closed with an upload unread, the answer would be lost with the connection
                    pass
                return
            if self.mode == "hang":
                self.hits += 1
                while client.recv(PIECE):
                    pass
                return
            with socket.create_connection(self.target) as server:
                self._open.add(server)
                up = threading.Thread(target=self._pump, args=(client, server, "cut-upload"), daemon=True)
                up.start()
                self._pump(server, client, "cut-download")
                up.join()
                self._open.discard(server)
        except OSError:
            pass
        finally:
            self._open.discard(client)
            client.close()

    def _pump(self, source: socket.socket, sink: socket.socket, cut: str) -> None:
        """Pass bytes on; in the mode `cut`, end the connection after the first MiB of it."""
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                sink.sendall(data)
                passed += len(data)
                if self.mode == cut and passed > 2**20:
                    self.hits += 1
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
