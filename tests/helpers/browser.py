"""Run a model in a page of headless Chromium with the npm package onnxruntime-web, over a server of this process."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortfuse.runtime import node_sessions

REQUIRED = "ORTFUSE_BROWSER_REQUIRED"
"""Environment variable: whether a missing browser or package is a failure, as it is in CI."""

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)  # fmt: skip

LIMIT = 120.0
"""Seconds after which a page has failed."""

PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const tell = (answer) => fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array };
try {
  const ort = await import("/package/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = "/package/";
  ort.env.wasm.numThreads = 1;
  const { model, files, feeds } = await (await fetch("/question")).json();
  const externalData = files.map((path) => ({ path, data: `/files/${path}` }));
  const session = await ort.InferenceSession.create(`/files/${model}`, { executionProviders: ["wasm"], externalData });
  const given = feeds.map(({ name, type, dims, data }) =>
    [name, new ort.Tensor(type, new ARRAYS[type](bytes(data).buffer), dims)]);
  const found = await session.run(Object.fromEntries(given));
  const outputs = session.outputNames.map((name) => {
    const { type, dims, data } = found[name];
    const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    let text = "";
    for (const one of raw) text += String.fromCharCode(one);
    return { name, type, dims, data: btoa(text) };
  });
  await tell({ outputs, browser: navigator.userAgent });
} catch (error) {
  await tell({ error: String(error?.stack ?? error) });
}
</script>"""

_KINDS = {".wasm": "application/wasm", ".mjs": "text/javascript", ".html": "text/html"}


def chromium() -> str:
    """The path of Chromium; the test is skipped without it or the package, or fails where they are required."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = "" if found else "Chromium is missing: install Debian's package chromium"
    try:
        node_sessions.find_package("onnxruntime-web")
    except node_sessions.NodeError as error:
        missing = missing or str(error)
    if missing and os.environ.get(REQUIRED):
        pytest.fail(f"{missing}; {REQUIRED} is set")
    if missing:
        pytest.skip(missing)
    assert found is not None
    return found


def run_in_page(
    model: Path, inputs: Mapping[str, np.ndarray[Any, Any]], files: tuple[str, ...] = ()
) -> dict[str, np.ndarray[Any, Any]]:
    """Run a model file in a page; returns its outputs.

    Args:
        model: The model.
        inputs: Its inputs.
        files: The names of its data files, which lie beside it.
    """
    program = chromium()
    feeds = [
        {"name": name, "type": one.dtype.name, "dims": one.shape, "data": base64.b64encode(one.tobytes()).decode()}
        for name, one in inputs.items()
    ]
    question = json.dumps({"model": model.name, "files": files, "feeds": feeds}).encode()
    package = node_sessions.find_package("onnxruntime-web") / "dist"

    def content(path: str) -> bytes | None:
        _, folder, name = (path.split("?")[0] + "//").split("/")[:3]
        if folder == "":
            return PAGE.encode()
        if folder == "question":
            return question
        place = {"package": package, "files": model.parent}.get(folder)
        file = None if place is None else place / name
        return file.read_bytes() if file is not None and file.is_file() else None

    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(content, answers.put))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            url = f"http://127.0.0.1:{server.server_port}/"
            with subprocess.Popen(
                [program, *FLAGS, f"--user-data-dir={profile}", url],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            ) as process:  # fmt: skip
                try:
                    answer = answers.get(timeout=LIMIT)
                except queue.Empty:
                    pytest.fail(f"the page gave no answer in {LIMIT:.0f} s")
                finally:
                    os.killpg(process.pid, 9)
    finally:
        server.shutdown()
        server.server_close()
    assert "error" not in answer, answer["error"]
    assert "Chrom" in answer["browser"]
    return {
        one["name"]: np.frombuffer(base64.b64decode(one["data"]), one["type"]).reshape(one["dims"]) for one in answer["outputs"]
    }  # fmt: skip


def _handler(
    content: Callable[[str], bytes | None], tell: Callable[[dict[str, Any]], None]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = content(self.path)
            self.send_response(404 if found is None else 200)
            path = "/index.html" if self.path == "/" else self.path
            self.send_header("Content-Type", _KINDS.get(Path(path).suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(len(found or b"")))
            # Threads of WebAssembly share memory, which a page may only if it lets nothing of other sites in.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(found or b"")

        def do_POST(self) -> None:
            tell(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
