"""A small hub on loopback with the routes that huggingface_hub uses to fetch model files, with faults on request.

`files` maps OWNER/NAME to its files. Faults by path of a file: `cut` ends the first connection after that many bytes, `spoiled` serves
other bytes than the checksum promises. `statuses` answers for a whole model with a status and the hub's error code.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "a" * 40
BRANCHES = ("main", COMMIT)


@dataclass
class Hub:
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    spoiled: set[str] = field(default_factory=set)
    statuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    gets: list[str] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(hub: Hub):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            repo = "/".join(parts[2:4] if api else parts[:2])
            if repo in hub.statuses:
                return self._error(*hub.statuses[repo])
            if repo not in hub.files:
                return self._error(404, "RepoNotFound")
            revision = (parts[5] if len(parts) > 5 else "main") if api else parts[3]
            if revision not in BRANCHES:
                return self._error(404, "RevisionNotFound")
            if api:
                return self._listing(repo)
            name = "/".join(parts[4:])
            if name not in hub.files[repo]:
                return self._error(404, "EntryNotFound")
            return self._file(f"{repo}/{name}", hub.files[repo][name], with_body)

        def _error(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _listing(self, repo: str) -> None:
            model = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files[repo]]}
            body = json.dumps(model).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _file(self, where: str, data: bytes, with_body: bool) -> None:
            asked = self.headers.get("Range")
            start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
            self.send_response(206 if asked else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data) - start))
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if not with_body:
                return
            hub.gets.append(where)
            if asked:
                hub.ranges.append(asked)
            body = data[start:]
            if where in hub.spoiled:
                body = body[:-1] + bytes([body[-1] ^ 1])
            if (kept := hub.cut.pop(where, None)) is not None:
                self.wfile.write(body[:kept])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(body)

    return Handler
