"""Installs, starts, scrapes, upgrades, removes and purges the package in a clean Debian with systemd, in a machine of
scripts/vm (guest.sh). Then starts the container image there, with the capabilities of the DaemonSet.

    PYTHONPATH=tests GPUREC_DEMO=target/debug/build/gpurec-…/out/demo python3 -B -m unittest package.machine

GPUREC_DEMO is the folder with the stand-in CUDA libraries and the program that uses them. GPUREC_STATIC names a static
binary; without it scripts/package builds one. GPUREC_TEST_DEBIAN names the release of Debian (trixie, bookworm).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from package import packages
from package.packages import ROOT, Image, read

# Each release with its kernel.
RELEASES = {"trixie": "trixie/6.12", "bookworm": "6.1"}
LATER = "99.0.0"


def static(out, *words):
    """Packages of a static binary."""
    binary = os.environ.get("GPUREC_STATIC")
    return packages.make(out, *words, *(["--binary", binary] if binary else []))


class Lint(unittest.TestCase):
    def test_lintian_finds_no_error(self):
        if not shutil.which("lintian"):
            packages.skip(self, "lintian is missing")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        (deb,) = static(folder, "deb")
        done = subprocess.run(["lintian", "--fail-on", "error", deb], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Life(unittest.TestCase):
    def setUp(self):
        if not shutil.which("qemu-system-x86_64"):
            packages.skip(self, "qemu-system-x86_64 is missing: scripts/vm --kernel 6.12 --prepare installs it")
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.files = os.path.join(self.folder, "files")
        os.mkdir(self.files)

    def put_packages(self):
        deb, image = static(os.path.join(self.folder, "one"), "deb", "image")
        (later,) = static(os.path.join(self.folder, "two"), "deb", "--version", LATER)
        shutil.copy(deb, os.path.join(self.files, "one.deb"))
        shutil.copy(later, os.path.join(self.files, "two.deb"))
        image = Image(image)
        for layer in image.layers():
            layer.extractall(os.path.join(self.files, "image"), filter="data")
        return image.config["config"]

    def put_script(self, config):
        """The script, with the capabilities and the command of the container."""
        capabilities = packages.unit()["CapabilityBoundingSet"]
        command = " ".join(config["Entrypoint"] + config["Cmd"])
        with open(os.path.join(self.files, "guest.sh"), "w", encoding="utf-8") as file:
            file.write(f"CAPABILITIES='{capabilities}'\nCOMMAND='{command}'\n" + read(ROOT, "tests", "package", "guest.sh"))
        script = os.path.join(self.folder, "script")
        with open(script, "w", encoding="utf-8") as file:
            file.write("exec bash /vm/guest.sh\n")
        return script

    def test_the_package_lives_and_leaves_nothing(self):
        for name in ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1", "program"):
            shutil.copy(os.path.join(os.environ["GPUREC_DEMO"], name), self.files)
        script = self.put_script(self.put_packages())
        debian = os.environ.get("GPUREC_TEST_DEBIAN", "trixie")
        done = subprocess.run(
            [os.path.join(ROOT, "scripts", "vm"), "--kernel", RELEASES[debian], "--driver", "none", "--debian", debian,
             "--timeout", "1200", "--files", self.files, "--script", script, "--out", os.path.join(self.folder, "out")],
            capture_output=True, text=True)
        sys.stderr.write(done.stdout)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"passed\n\Z")
        self.assertNotIn("logged an error", done.stderr)
        exposure = re.search(r"exposure level for gpurec.service: ([0-9.]+)", done.stdout)
        self.assertLessEqual(float(exposure.group(1)), 3.0)


if __name__ == "__main__":
    unittest.main()
