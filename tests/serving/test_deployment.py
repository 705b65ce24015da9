"""The environment of a production server: the proxy configuration in the documentation, and the Containerfile."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.cli.serve import VARIABLES, serve

Servers = Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")


def commands(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", RECIPE, re.MULTILINE)


def test_the_recipe_copies_what_there_is_and_what_the_package_needs() -> None:
    copied = [word for line in commands("COPY") for word in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert kept == copied
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (install,) = [line for line in commands("RUN") if line.startswith("pip install")]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', install)
    assert [extra for extra in extras.split(",") if f"\n{extra} = [" not in project] == []
    (readme,) = re.findall(r'^readme = "(.*)"', project, re.MULTILINE)
    assert {"pyproject.toml", "src", readme} <= set(copied)


def test_the_recipe_runs_our_server_as_a_user_without_rights() -> None:
    assert json.loads(commands("ENTRYPOINT")[0]) == ["multihead", "serve"]
    assert int(commands("USER")[-1].partition(":")[0]) > 0
    settings = dict(word.split("=", 1) for line in commands("ENV") for word in line.split())
    variables = {f"{VARIABLES}_{option.name}".upper() for option in serve.params}
    ours = [name for name in settings if name.startswith(VARIABLES)]
    assert ours
    assert [name for name in ours if name not in variables] == []


def test_every_line_of_the_recipe_is_an_instruction() -> None:
    """An argument is declared before it is used, and after FROM, which discards earlier ones."""
    lines = [line for line in RECIPE.splitlines() if line and not line.startswith("#")]
    known = r"(ARG|CMD|COPY|ENTRYPOINT|ENV|EXPOSE|FROM|HEALTHCHECK|RUN|STOPSIGNAL|USER|VOLUME|WORKDIR) "
    assert [line for line in lines if not re.match(known, line)] == []
    assert lines[0].startswith("FROM ")
    declared: set[str] = set()
    for line in lines:
        if line.startswith("ARG "):
            declared.add(line.split()[1].partition("=")[0])
        assert set(re.findall(r"\$\{(\w+)\}", line)) <= declared, line
    assert declared == {"PIP_EXTRA_INDEX_URL", "DEVICE"}


@pytest.mark.parametrize(
    ("device", "cuda", "said"),
    [
        ("cpu", None, None),
        ("cpu", "13.0", None),
        ("cuda", "13.0", None),
        ("cuda", None, "without CUDA"),
        ("gpu", None, "not gpu"),
    ],
)
def test_the_recipe_refuses_a_pytorch_of_the_other_device(
    device: str, cuda: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the recipe, with a PyTorch of either build."""
    (line,) = [line for line in commands("RUN") if "torch.version" in line]
    _, flag, code = shlex.split(line.replace("${DEVICE}", device))
    assert flag == "-c"
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(SystemExit) as ended:
        exec(compile(code, "Containerfile", "exec"), {})
    assert ended.value.code == 0 if said is None else said in str(ended.value.code)


def test_the_health_check_of_the_recipe_tells_health(translator: Translator, servers: Servers) -> None:
    """The line is run unchanged; the port is that of the server, which a user can set."""
    (check,) = commands("HEALTHCHECK")
    python, flag, code = json.loads(check.partition("CMD ")[2])
    port = servers.start(lambda: translator).client.port
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for where, status in ((port, 0), (unused.getsockname()[1], 1)):
            environment = {**os.environ, f"{VARIABLES}_PORT": str(where)}
            ended = subprocess.run([python, flag, code], env=environment, stderr=subprocess.DEVNULL, timeout=60)
            assert ended.returncode == status


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def proxy(translator: Translator, servers: Servers, tmp_path: Path) -> Iterator[tuple[int, Any]]:
    """The port of nginx with the configuration of the documentation, and the server behind it."""
    nginx, openssl = shutil.which("nginx"), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx and openssl are not installed")
    serving = servers.start(lambda: translator, allowed_host=("mt.example.org",))
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    key, certificate, port = tmp_path / "key", tmp_path / "certificate", free_port()
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, "-subj", "/CN=mt.example.org"], check=True, capture_output=True)
    for old, new in (
        ("/etc/ssl/mt.example.org.pem", str(certificate)),
        ("/etc/ssl/private/mt.example.org.key", str(key)),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8000", f"127.0.0.1:{serving.client.port}"),
    ):
        assert old in block
        block = block.replace(old, new)
    folders = "".join(
        f"{name}_temp_path {tmp_path / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.getuid() == 0 else ""
    rest = f"daemon off;\npid {tmp_path / 'pid'};\nerror_log stderr;\nevents {{}}\n"
    (tmp_path / "nginx.conf").write_text(f"{user}{rest}http {{\naccess_log off;\n{folders}{block}}}\n")
    words = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    assert subprocess.run([*words, "-t"], capture_output=True).returncode == 0
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port, serving
    finally:
        process.terminate()
        process.wait(30)


def test_the_documented_proxy_serves_and_limits(proxy: tuple[int, Any], translator: Translator) -> None:
    port, serving = proxy
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ask(method: str, path: str, content: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        headers = {"Host": "mt.example.org", "Content-Type": "application/json"}
        connection.request(method, path, None if content is None else json.dumps(content), headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    status, body = ask("POST", "/translate", {"text": "eins zwei"})
    assert status == 200
    assert [one["text"] for one in json.loads(body)["translations"]] == translator.translate(["eins zwei"])
    status, body = ask("POST", "/translate/stream", {"text": "eins zwei"})
    assert (status, b"event: done" in body) == (200, True)
    assert ask("GET", "/metrics")[0] == 403
    assert ask("POST", "/translate", {"text": "a" * 1_100_000})[0] == 413
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as slow:
        slow.sendall(b"POST /translate HTTP/1.1\r\nHost: mt.example.org\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.2)
        assert serving.client.metric("multihead_connections") == 1  # the proxy waits for the body, we do not
    statuses = [ask("GET", "/health")[0] for _ in range(60)]
    assert set(statuses) == {200, 429}
