"""What the tests of packages share: how to make packages with scripts/package, and how to read them."""
import io
import json
import os
import shlex
import subprocess
import tarfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")
UNIT = os.path.join(PACKAGING, "systemd", "gpurec.service")
DEFAULTS = os.path.join(PACKAGING, "systemd", "gpurec.default")


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def make(out, *words, env=None):
    """Runs scripts/package and returns the paths that it prints."""
    script = os.path.join(ROOT, "scripts", "package")
    return run(script, "--out", out, *words, env={**os.environ, **(env or {})}).split()


def skip(test, why):
    """Skips a test for what is missing; in CI, the test fails."""
    if os.environ.get("CI") == "true":
        raise AssertionError(f"{test.id()} was skipped under CI: {why}")
    raise unittest.SkipTest(why)


def unit():
    """The settings of the unit; of a name that is there twice, the last value."""
    lines = (line.strip() for line in read(UNIT).splitlines())
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class Image:
    """An OCI archive."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.tar = tarfile.open(fileobj=io.BytesIO(file.read()))
        self.index = self.json("index.json")
        self.manifest = self.json(self.path(self.index["manifests"][0]))
        self.config = self.json(self.path(self.manifest["config"]))

    def path(self, descriptor):
        return "blobs/" + descriptor["digest"].replace(":", "/")

    def bytes(self, name):
        return self.tar.extractfile(name).read()

    def json(self, name):
        return json.loads(self.bytes(name))

    def descriptors(self):
        return [self.index["manifests"][0], self.manifest["config"], *self.manifest["layers"]]

    def layers(self):
        for layer in self.manifest["layers"]:
            yield tarfile.open(fileobj=io.BytesIO(self.bytes(self.path(layer))), mode="r:gz")
