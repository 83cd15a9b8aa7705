"""A headless Chromium, driven over its own protocol by a pair of pipes: no server, no port, no package from elsewhere."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.parse

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The browser's path, or None."""
    return os.environ.get("TESSERA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class PageError(Exception):
    """What a script threw in the page."""


class Page:
    """One page. Errors that it logs or throws are kept in `errors`."""

    def __init__(self, binary, width=1200, height=900):
        self.profile = tempfile.mkdtemp(prefix="view_test_")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def wire():  # the browser reads descriptor 3 and writes 4
            commands, replies = os.dup(to_browser), os.dup(from_browser)
            os.dup2(commands, 3)
            os.dup2(replies, 4)

        self.process = subprocess.Popen(
            [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-features=IsolateSandboxedIframes", "--disable-extensions", "--disable-background-networking",
             f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._next = 0
        self._events = []
        self.errors = []
        self.contexts = []  # of the page and of every frame in it, as they came
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.resize(width, height)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser went away")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        method, values = event.get("method"), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.executionContextCreated":
            self.contexts.append(values["context"]["id"])
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(values["args"]))
        if method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])

    def call(self, method, **values):
        self._next += 1
        message = {"id": self._next, "method": method, "params": values}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") != self._next:
                self._note(reply)
                continue
            if "error" in reply:
                raise RuntimeError(f"{method}: {reply['error']}")
            return reply["result"]

    def open(self, path, fragment=""):
        # By way of an empty page: the same file with another fragment would not load again.
        for url in ("about:blank", "file://" + urllib.parse.quote(os.path.abspath(path)) + fragment):
            self._events.clear()
            self.contexts.clear()
            self.call("Page.navigate", url=url)
            while "Page.loadEventFired" not in self._events:
                self._note(self._read())

    def evaluate(self, script, context=None):
        where = {} if context is None else {"contextId": context}
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **where)
        if "exceptionDetails" in result:
            raise PageError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def mouse(self, kind, x, y, **values):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **values)
        self.frame()

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            values = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **values)
        self.frame()

    def frame(self):
        """Waits until what was asked for has been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def screenshot(self, path, clip=None):
        values = {"clip": {**clip, "scale": 1}} if clip else {}
        image = self.call("Page.captureScreenshot", format="png", **values)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(image))
