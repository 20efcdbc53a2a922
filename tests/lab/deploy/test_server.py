"""The server: what it answers, what it refuses, and what a person sees in a browser."""

import asyncio
import json
import os
import re
import signal
import socket
import urllib.request

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import chromium
from advdrop.lab.cli import serve
from advdrop.lab.deploy import server
from advdrop.lab.deploy.server import Limits, allowed_host, app_of, page_of
from advdrop.lab.engine import train
from advdrop.lab.engine.model import load
from bad_pictures import SVG, huge_png
from commands import says
from processes import advdrop, started, wait_for
from runs import rings, tiny


@pytest.fixture(scope="module")
def client(image_run):
    app = app_of(load(image_run[0]), "squares & <b>", limits=Limits(megabytes=0.1))
    with TestClient(app, base_url="http://localhost") as found:
        yield found


@pytest.fixture
def picture(image_run, tmp_path):
    path = tmp_path / "größe.png"
    Image.fromarray(image_run[1].test.x[0].numpy().transpose(1, 2, 0)).save(path)
    return path


def test_the_type_of_a_form_may_have_capital_letters(client, picture):
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    content, kind = head + picture.read_bytes() + b"\r\n--x--\r\n", "Multipart/Form-Data; boundary=x"
    assert client.post("/predict", content=content, headers={"content-type": kind}).status_code == 200


def test_a_form_and_a_plain_body_give_what_the_model_gives(client, picture, image_run):
    model = load(image_run[0])
    expected = dict(zip(model.classes, map(float, model.predict_proba(picture)[0]), strict=True))
    for sent in ({"files": {"image": picture.read_bytes()}}, {"content": picture.read_bytes()}):
        answer = client.post("/predict", **sent)
        assert answer.status_code == 200
        found = answer.json()
        assert {each["class"]: each["probability"] for each in found["classes"]} == expected
        values = [each["probability"] for each in found["classes"]]
        assert values == sorted(values, reverse=True)
        assert (found["class"], found["probability"]) == (model.predict(picture)[0], values[0])


def test_health_says_what_is_served(client):
    answer = client.get("/health").json()
    assert answer == {"status": "ok", "model": "squares & <b>", "classes": ["a", "b", "c"], "shape": [3, 8, 8]}


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"no picture", 400, "This is not an image that can be read; use one of PNG, JPEG"),
        (SVG, 400, "This is not an image that can be read"),
        (b"\x89PNG\r\n\x1a\n", 400, "This is not an image that can be read"),
        (b"", 400, "There is no image in the request."),
        (huge_png(), 413, "The image has too many pixels; it may have 89 million."),
        (huge_png(10_000), 413, "The image has too many pixels"),
        (b"x" * 100_001, 413, "The image has more than 0.1 MB."),
    ],
    ids=["text", "svg", "cut", "nothing", "huge", "large", "bytes"],
)
def test_what_is_no_image_is_refused_in_a_sentence(content, status, said, client):
    answers = [client.post("/predict", content=content)]
    if content:
        answers.append(client.post("/predict", files={"image": ("cat.png", content)}))
    for answer in answers:
        assert answer.status_code == status
        assert said in answer.json()["error"]
        assert "Traceback" not in answer.text


def test_a_form_without_an_image(client):
    for form in ({"data": {"image": "/etc/passwd"}, "files": {"other": b"x"}}, {"files": {"other": b"x"}}):
        answer = client.post("/predict", **form)
        assert answer.status_code == 400
        assert answer.json() == {"error": "The form has no file in a field called image."}
    two = client.post("/predict", files=[("image", b"x"), ("image", b"y")])
    assert two.status_code == 400
    broken = client.post("/predict", content=b"x", headers={"content-type": "multipart/form-data"})
    assert broken.status_code == 400


def test_nothing_else_is_there(client):
    for path in ("/etc/passwd", "/../../etc/passwd", "/page.html", "/docs", "/openapi.json", "/predict"):
        answer = client.get(path)
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]


def call(app, receive, headers=()):
    """Send a request to an application, part by part; return its status and its answer."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/predict",
        "raw_path": b"/predict", "query_string": b"", "root_path": "", "scheme": "http", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost"), *headers],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


def test_a_gigabyte_is_cut_off_while_it_is_read(image_run):
    app, asked = app_of(load(image_run[0]), "r"), []

    async def receive():
        asked.append(1)
        return {"type": "http.request", "body": bytes(10**6), "more_body": len(asked) < 1000}

    status, answer = call(app, receive)
    assert (status, answer) == (413, {"error": "The image has more than 10 MB."})
    assert len(asked) <= 12
    asked.clear()
    for length in (b"1000000000", b"-1", b"x", b"9" * 5000):
        assert call(app, receive, [(b"content-length", length)])[0] == 413
    assert asked == []


def test_a_slow_upload_is_given_up(image_run):
    app = app_of(load(image_run[0]), "r", limits=Limits(seconds=0.05))

    async def receive():
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": b"x", "more_body": True}

    assert call(app, receive) == (408, {"error": "The image did not arrive within 0.05 seconds."})


def test_a_client_that_leaves_is_no_error(image_run):
    async def receive():
        return {"type": "http.disconnect"}

    assert call(app_of(load(image_run[0]), "r"), receive)[0] == 400


def test_more_requests_than_the_limit_are_refused(image_run):
    app = app_of(load(image_run[0]), "r", limits=Limits(requests=0))

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    assert call(app, receive) == (503, {"error": "The server is busy; try again in a moment."})
    slots = server.Slots(1)

    async def fail():
        async with slots.taken():
            raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            asyncio.run(fail())
    assert slots.now == 0


@pytest.mark.parametrize(
    ("header", "fine"),
    [
        ("localhost", True), ("LOCALHOST:8000", True), ("127.0.0.1:8000", True), ("[::1]:8000", True), ("::1", False),
        ("lab.local", True), ("evil.example", False), ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:80@localhost", False), ("", False), ("[", False), ("localhost:x", False), ("lab.local.", False),
    ],
)  # fmt: skip
def test_only_names_of_this_server_are_answered(header, fine, client):
    assert allowed_host(header, "lab.local") is fine
    if not fine and header:
        answer = client.get("/", headers={"host": header})
        assert answer.status_code == 421


def test_the_page_needs_nothing_else_and_runs_nothing_else(client, image_run):
    answer = client.get("/")
    page, policy = page_of(load(image_run[0]), "squares & <b>", Limits(megabytes=0.1))
    assert answer.text == page
    assert answer.headers["content-security-policy"] == policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<h1>squares &amp; &lt;b&gt;</h1>" in page
    assert not re.search(r"https?://|//\w|src=|href=|@import|\bon\w+=", page)
    assert "style=" not in page
    for name in ("x-content-type-options", "referrer-policy", "cache-control"):
        assert answer.headers[name]


# ------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("module", "package"), [("fastapi", "fastapi"), ("uvicorn", "uvicorn"), ("python_multipart", "python-multipart")]
)
def test_a_missing_package_is_told_in_one_line(module, package, capsys, monkeypatch, image_run):
    real = serve.find_spec
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == module else real(name))
    line = f"advdrop: advdrop serve needs {package}, which is not installed; pip install 'advdrop[serve]'\n"
    assert says(capsys, "serve", image_run[0]) == (2, "", line)


def test_a_port_that_is_taken_and_a_host_that_is_not_here(capsys, image_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"advdrop: cannot listen on 127.0.0.1:{port} (the port is taken); choose another --port or --host\n"
        assert says(capsys, "serve", image_run[0], "--port", port) == (2, "", said)
    code, _, err = says(capsys, "serve", image_run[0], "--host", "no.such.host.invalid")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot listen on no.such.host.invalid:8000 (" in err


def test_a_run_of_a_table_is_refused(capsys, tmp_path):
    train(tiny(), tmp_path / "table", data=rings(), progress=False)
    code, _, err = says(capsys, "serve", tmp_path / "table")
    assert (code, err.count("\n")) == (2, 1)
    assert "classifies arrays of shape (6,), not images" in err


def address_in(log):
    wait_for(lambda: log.exists() and re.search(r"http://\S+", log.read_text()))
    return re.search(r"http://\S+", log.read_text())[0]


def test_the_server_answers_and_ends_cleanly(image_run, picture, tmp_path):
    log = tmp_path / "log"
    with started(advdrop, ["serve", str(image_run[0]), "--port", "0"], log) as process:
        address = address_in(log)
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(urllib.request.Request(f"{address}predict", picture.read_bytes())) as answer:
            assert json.load(answer)["class"] in image_run[1].classes
        port = int(address.split(":")[2].strip("/"))
        with socket.create_connection(("127.0.0.1", port)) as left:  # an upload that is broken off
            left.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc")
        with urllib.request.urlopen(f"{address}health") as answer:
            assert json.load(answer)["status"] == "ok"
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        assert process.exitcode == 0
    first, last = log.read_text().splitlines()
    assert first == f"squares is served at {address} (Ctrl-C stops it)"
    assert last == "stopped"


@pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no Chromium on this machine")
def test_a_person_with_a_browser(image_run, picture, tmp_path):
    log, bad = tmp_path / "log", tmp_path / "drawing.png"
    bad.write_bytes(SVG)
    (tmp_path / "large.png").write_bytes(bytes(2 * 10**5))
    best = load(image_run[0]).predict(picture)[0]
    with (
        started(advdrop, ["serve", str(image_run[0]), "--port", "0", "--max-mb", "0.1"], log),
        chromium.browser(tmp_path) as page,
    ):
        page.call("Page.navigate", url=address_in(log))
        page.wait_for("document.readyState == 'complete' && document.getElementById('file') != null")
        seen = "!document.getElementById('result').hidden && document.getElementById('best').textContent"
        for act in (lambda: page.choose("#file", picture), lambda: page.drop("#drop", picture)):
            act()
            assert page.wait_for(seen).startswith(f"{best} (")
            rows = page.run("[...document.querySelectorAll('#classes li')].map(li => li.innerText)")
            assert len(rows) == 3
            assert rows[0].split()[0] == best
            assert page.run("document.querySelector('progress').value") > 1 / 3
            assert page.wait_for("document.getElementById('shown').naturalWidth") == 8
            assert page.run("document.getElementById('name').textContent") == picture.name
            page.choose("#file", bad)
            complaint = "document.getElementById('message').className == 'bad' && document.body.innerText"
            assert "This is not an image that can be read" in page.wait_for(complaint)
            assert page.run("document.getElementById('result').hidden")
        page.choose("#file", tmp_path / "large.png")
        assert "large.png has more than 0.1 MB." in page.wait_for("document.getElementById('message').textContent")
        assert [each for each in page.problems if "400" not in each and "favicon" not in each] == []
        for width in (400, 1400):
            page.look(width, "light")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
