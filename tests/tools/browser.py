# SPDX-License-Identifier: Apache-2.0
"""Pages in a headless Chromium, if there is one: the document after its scripts have run."""
import functools
import html.parser
import os
import re
import shutil
import subprocess
import tempfile

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@functools.cache
def browser():
    """The command, or None."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    probe = found and subprocess.run([found, "--no-sandbox", "--headless", "--version"], capture_output=True, check=False)
    return found if probe and probe.returncode == 0 else None


WHY_NOT = "no headless Chromium (Debian package chromium-headless-shell)"


def dump(path, script=""):
    """The document of a page, with what its console has told; script runs after the page's own."""
    with tempfile.TemporaryDirectory(prefix="weft-page-") as folder:
        copy = f"{folder}/page.html"
        with open(path, encoding="utf-8") as file, open(copy, "w", encoding="utf-8") as out:
            text = file.read()
            out.write(text.replace("</body>", f"<script>{script}</script></body>") if script else text)
        done = subprocess.run([browser(), "--no-sandbox", "--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
                               "--enable-logging=stderr", "--window-size=1200,900", "--virtual-time-budget=10000", "--dump-dom", f"file://{copy}"],
                              capture_output=True, text=True, timeout=600, check=True, env={**os.environ, "HOME": folder})
    return done.stdout, [line for line in done.stderr.splitlines() if re.search(r"CONSOLE", line)]


class Texts(html.parser.HTMLParser):
    """Tags with their attributes, and the texts that are shown."""

    def __init__(self, document):
        super().__init__()
        self.tags, self.shown, self.inside = [], [], []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = self.inside + [tag] if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.inside = self.inside[:-1]

    def handle_data(self, data):
        if not self.inside:
            self.shown.append(data)

    def find(self, name):
        """The attributes of the element with this id."""
        return next(attrs for _, attrs in self.tags if attrs.get("id") == name)

    def text(self):
        return " ".join(self.shown)
