"""A real browser, for the tests of pages."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = "pages are tested in Chromium, which is not installed (apt-get install chromium)"


class Browser:
    """Chromium without a window, spoken to through pipes in its DevTools protocol."""

    def __init__(self, folder: Path) -> None:
        ours_in, self.out = os.pipe()
        self.into, ours_out = os.pipe()

        def place() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(ours_in, 13)
            os.dup2(ours_out, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-dev-shm-usage", "--window-size=1200,1500", f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(ours_in)
        os.close(ours_out)
        self.number, self.session, self.rest = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                part = os.read(self.into, 1 << 20)
                assert part, "the browser has ended"
                self.rest += part
            line, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def run(self, script: str) -> object:
        """The value of an expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a condition holds; fail after a minute."""
        look = f"() => {condition} ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 20)"
        script = f"new Promise(done => {{ const end = Date.now() + 60_000, look = {look}; look(); }})"
        assert self.run(script), f"in vain: {condition}"

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
