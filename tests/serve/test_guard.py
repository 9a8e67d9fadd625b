"""What must not get in, and what must not get out."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from foveate.pipeline.errors import ConfigError
from foveate.pipeline.serve.options import ServeOptions, check, read_token
from foveate.pipeline.serve.run import Listener

TOKEN = "-".join(["correct", "horse", "battery", "staple"])


def raw(url, data, *, pause_s=0.0, timeout_s=20.0):
    """Send bytes as they are; return all that comes back until the connection ends."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=timeout_s) as line:
        found = b""
        try:
            for piece in data if isinstance(data, list) else [data]:
                line.sendall(piece)
                time.sleep(pause_s)
            while piece := line.recv(65536):
                found += piece
        except ConnectionError:  # cut off while it was sent, as the kernel has it
            return found
        return found


def test_a_host_name_of_another_site_is_refused(client, shared):
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        answer = client.get("/", headers={"Host": host})
        assert answer.status_code == 421, host
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080"):
        assert client.get("/health", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_gets_nothing(client, headers):
    for answer in (
        client.post("/api/search", json={"text": "lemons"}, headers=headers),
        client.get("/api/status", headers=headers),
        client.post("/mcp", json={}, headers=headers),
        client.options("/api/search", headers={**headers, "Access-Control-Request-Method": "POST"}),
    ):
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    # a link to the page itself works, as it does to any site
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_the_servers_own_page_may_ask(client, shared):
    own = {"Origin": shared.url, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/search", json={"text": "x"}, headers=own).status_code == 200


def test_a_form_of_another_page_cannot_pose_as_json(client):
    body = '{"text": "lemons"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": kind} if kind else {}
        answer = client.post("/api/search", content=body, headers=headers)
        assert answer.status_code in (400, 415, 422), kind


def test_every_response_has_its_armour(client):
    for path in ("/", "/page/app.js", "/api/status", "/nothing"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_other_machines_need_a_token(tmp_path):
    with pytest.raises(ConfigError, match="token"):
        check(ServeOptions(host="0.0.0.0"), None)
    check(ServeOptions(host="0.0.0.0"), TOKEN)
    check(ServeOptions(host="127.0.0.2"), None)
    short = tmp_path / "short"
    short.write_text("abc")
    short.chmod(0o600)
    with pytest.raises(ConfigError, match="16"):
        read_token(str(short))
    short.write_text(TOKEN + "\n")
    assert read_token(str(short)) == TOKEN
    short.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod"):
        read_token(str(short))


def test_with_a_token_all_but_the_empty_page_is_locked(start):
    listener = start(token=TOKEN)
    with httpx.Client(base_url=listener.url) as client:
        for path in ("/api/status", "/metrics", "/openapi.json", "/v1/models", "/api/jobs", "/mcp"):
            assert client.get(path).status_code == 401, path
        for given in ("Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", TOKEN):
            answer = client.get("/api/status", headers={"Authorization": given})
            assert answer.status_code == 401, given
            assert TOKEN not in answer.text
        assert (
            client.get("/api/status", headers={"Cookie": f"foveate_session={TOKEN}"}).status_code
            == 401
        )
        assert client.get("/").status_code == 200
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/api/session").json() == {"locked": True, "open": False}
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/status", headers=right).status_code == 200
        assert client.post("/api/session", json={"token": "wrong"}).status_code == 401
        cookie = client.post("/api/session", json={"token": TOKEN}).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert client.get("/api/status").status_code == 200  # by the cookie


def test_a_huge_body_is_cut_off(start):
    listener = start(max_body_bytes=10_000, max_upload_bytes=50_000, max_picture_bytes=1000)
    with httpx.Client(base_url=listener.url, timeout=20) as client:
        told = client.post("/api/ask", json={"text": "x" * 20_000})
        assert told.status_code == 413
        assert (
            client.post("/api/files", params={"name": "a.txt"}, content=b"x" * 60_000).status_code
            == 413
        )

        def endless():
            for _ in range(1000):
                yield b"x" * 1000

        chunked = client.post("/api/files", params={"name": "b.txt"}, content=endless())
        assert chunked.status_code == 413
        asked = client.post(
            "/api/ask", content=endless(), headers={"Content-Type": "application/json"}
        )
        assert asked.status_code == 413
        assert not list(listener.server.service.uploads.glob("*/*"))
        assert client.get("/health").status_code == 200
    head = b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n"
    assert b" 413 " in raw(listener.url, head)
    assert b" 400 " in raw(
        listener.url, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2_000_000 + b"\r\n\r\n"
    )


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"text": 1e999}', b"null", b'{"text": "\\ud800"}'],
)
def test_bad_json_is_a_mistake_of_the_client(client, body):
    for path in ("/api/search", "/api/ask", "/v1/embeddings", "/v1/chat/completions"):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500 or b"ud800" in body, (path, answer.text)
        assert answer.status_code < 500
    assert client.get("/health").status_code == 200


def test_slow_clients_lose_their_place(start):
    listener = start(patience_s=0.5)
    began = time.monotonic()
    assert raw(listener.url, b"GET / HT") == b""  # a head that never ends
    dripping = [bytes([c]) for c in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 50]
    assert raw(listener.url, dripping, pause_s=0.05) == b""
    head = b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 100\r\n\r\n{"
    assert b" 408 " in raw(listener.url, head)
    assert time.monotonic() - began < 15
    assert httpx.get(f"{listener.url}/health").status_code == 200


def test_too_much_at_once_is_told_to_come_back(start):
    listener = start(n_searching=1, n_waiting=0)
    desk = listener.server.service.searching
    with desk._place() as leave:
        answer = httpx.post(f"{listener.url}/api/search", json={"text": "lemons"})
        leave()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert httpx.post(f"{listener.url}/api/search", json={"text": "lemons"}).status_code == 200


def test_a_search_that_takes_too_long_is_let_go(start):
    listener = start(timeout_s=0.05)
    service = listener.server.service
    service.search = lambda body: time.sleep(1)
    assert httpx.post(f"{listener.url}/api/search", json={"text": "lemons"}).status_code == 504
    assert service.searching.held == 1  # its thread is not free before it has ended
    time.sleep(1.3)
    assert service.searching.held == 0


@pytest.mark.parametrize(
    "path",
    [
        "/page/../../../../pyproject.toml",
        "/page/..%2f..%2f..%2fpyproject.toml",
        "/page/%2e%2e/%2e%2e/options.py",
        "/page//etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/api/passages/..%2f..%2fetc%2fpasswd",
        "/api/passages/../../etc/passwd",
        "/api/passages/%00",
        "/api/jobs/..%2f..%2f",
    ],
)
def test_no_path_reaches_the_disk(shared, path):
    told = raw(
        shared.url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    status = int(told.split()[1])
    assert status in (400, 404, 422), told[:200]
    assert b"root:" not in told


@pytest.mark.parametrize(
    "name",
    ["../evil.txt", "a/b.txt", "/etc/passwd", "..", ".hidden", "~x", "a\\b.txt", "con:x",
     "a\nb.txt", "a\u202etxt.exe", "", " ", "x" * 300 + ".txt"],
)  # fmt: skip
def test_an_upload_stays_where_it_belongs(start, tmp_path, name):
    listener = start(files=False)
    before = sorted(p for p in tmp_path.rglob("*") if "own.fov" not in p.parts)
    answer = httpx.post(f"{listener.url}/api/files", params={"name": name}, content=b"text")
    assert answer.status_code in (400, 422), answer.text
    assert sorted(p for p in tmp_path.rglob("*") if "own.fov" not in p.parts) == before


def test_only_roots_are_indexed_and_links_do_not_lead_out(start, tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("The vault code is heliotrope.")
    (root / "open.txt").write_text("A public heliotrope garden.")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    listener = start(files=False, roots=(str(root),))
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        links = (root / "link.txt", root / "folder", f"{root}/../outside")
        for path in (outside, outside / "secret.txt", *links, "/etc", "~", f"{root}\0", f"{root}x"):
            answer = client.post("/api/add", json={"paths": [str(path)]})
            assert answer.status_code in (400, 403), path
        client.post(
            "/api/add", params={"wait_s": 20}, json={"paths": [str(root)]}
        ).raise_for_status()
        hits = client.post("/api/search", json={"text": "heliotrope"}).json()["hits"]
        assert [hit["name"] for hit in hits] == ["open.txt"]


def test_a_file_put_in_an_indexed_ones_place_is_not_shown(start, tmp_path, corpus):
    folder = tmp_path / "pictures"
    folder.mkdir()
    photo, secret = folder / "red.png", tmp_path / "secret.png"
    photo.write_bytes((corpus / "red.png").read_bytes())
    secret.write_bytes((corpus / "blue.png").read_bytes())
    listener = start(files=False, roots=(str(folder),))
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        client.post(
            "/api/add", params={"wait_s": 20}, json={"paths": [str(folder)]}
        ).raise_for_status()
        hit = client.post("/api/search", json={"text": "red", "modality": ["image"]}).json()[
            "hits"
        ][0]
        assert client.get(hit["picture"]).status_code == 200
        photo.unlink()
        photo.symlink_to(secret)
        answer = client.get(hit["picture"])
        assert answer.status_code == 422
        assert "changed" in answer.json()["error"]["message"]
        photo.unlink()
        assert client.get(hit["picture"]).status_code in (422, 500)


def test_a_server_that_only_reads_changes_nothing(start, corpus):
    listener = start(read_only=True, roots=(str(corpus),))
    with httpx.Client(base_url=listener.url) as client:
        assert client.post("/api/files", params={"name": "a.txt"}, content=b"x").status_code == 403
        assert client.post("/api/add", json={"paths": [str(corpus)]}).status_code == 403
        assert client.post("/api/remove", json={"targets": [str(corpus)]}).status_code == 403


def test_html_and_script_stay_text(start, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    name = "<img src=x onerror=alert(1)>.txt"
    (folder / name).write_text("zebra <script>alert(1)</script> </p>&lt; [1]")
    listener = start(files=False, roots=(str(folder),))
    with httpx.Client(base_url=listener.url, timeout=30) as client:
        client.post(
            "/api/add", params={"wait_s": 20}, json={"paths": [str(folder)]}
        ).raise_for_status()
        found = client.post("/api/search", json={"text": "zebra <script>"})
        assert found.headers["content-type"] == "application/json"
        assert found.json()["hits"][0]["name"] == name
        told = client.post("/api/ask", json={"text": "zebra?\n\ndata: x\n\nevent: answer"})
        assert told.headers["content-type"].startswith("text/event-stream")
        names = [line for line in told.text.splitlines() if line.startswith("event:")]
        assert names == ["event: hits", "event: answer"]


def test_the_port_that_is_taken_is_named(shared):
    engine = shared.server.service.engine
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    with pytest.raises(ConfigError, match="cannot listen"):
        Listener(engine, ServeOptions(port=taken.getsockname()[1]))
    taken.close()
