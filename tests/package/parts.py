"""Tests of packages that need no machine: control fields, scripts, the unit, the image, the folder for Kubernetes.

    PYTHONPATH=tests GPUREC_BINARY=target/debug/gpurec python3 -B -m unittest package.parts

The binary need not be static here. tests/package/machine.py installs the package of a static one.
"""
import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from package import packages
from package.packages import PACKAGING, ROOT, Image, read, run

try:
    import yaml
except ImportError:
    yaml = None

# Without compression, which takes most of the time.
QUICK = {"DPKG_DEB_COMPRESSOR_LEVEL": "0"}


class Made(unittest.TestCase):
    """The packages, made twice."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.binary = os.path.abspath(os.environ["GPUREC_BINARY"])
        make = lambda name: packages.make(os.path.join(cls.folder, name), "--binary", cls.binary, env=QUICK)
        cls.first, cls.second = make("first"), make("second")
        cls.deb, cls.tarball, cls.image = cls.first
        cls.root = os.path.join(cls.folder, "root")
        run("dpkg-deb", "-R", cls.deb, cls.root)

    def control(self, name):
        return read(self.root, "DEBIAN", name)

    def test_the_same_input_gives_the_same_bytes(self):
        for first, second in zip(self.first, self.second):
            self.assertTrue(filecmp.cmp(first, second, shallow=False), first)

    def test_the_control_file_has_what_debian_wants(self):
        fields = dict(line.split(": ", 1) for line in self.control("control").splitlines() if line[0] != " ")
        version = re.search(r'^version = "(.*)"', read(ROOT, "Cargo.toml"), re.M).group(1)
        self.assertEqual(fields["Package"], "gpurec")
        self.assertEqual(fields["Version"], f"{version}-1")
        self.assertEqual(fields["Architecture"], run("dpkg", "--print-architecture").strip())
        self.assertRegex(fields["Maintainer"], r"^[^<>]+ <[^<>@ ]+@[^<>@ ]+>$")
        self.assertRegex(fields["Installed-Size"], r"^[1-9][0-9]*$")
        self.assertLessEqual(len(fields["Description"]), 80)
        self.assertLessEqual({"Section", "Priority", "Homepage"}, fields.keys())
        self.assertNotIn("@", self.control("control").replace(fields["Maintainer"], ""))

    def test_files_belong_to_root_and_are_those_of_the_sums(self):
        listed = run("dpkg-deb", "-c", self.deb).splitlines()
        self.assertEqual({line.split()[1] for line in listed}, {"root/root"})
        self.assertEqual({line[:10] for line in listed if "x" not in line[:10]}, {"-rw-r--r--"})
        self.assertEqual([line for line in listed if set(line[:10]) & set("sStTl")], [])
        run("md5sum", "-c", "--quiet", "DEBIAN/md5sums", cwd=self.root)
        files = sum(line.startswith("-") for line in listed)
        self.assertEqual(len(self.control("md5sums").splitlines()), files)

    def test_what_users_expect_is_there(self):
        for path in ("usr/bin/gpurec", "usr/lib/systemd/system/gpurec.service", "etc/default/gpurec",
                     "usr/share/man/man1/gpurec.1.gz", "usr/share/doc/gpurec/copyright",
                     "usr/share/doc/gpurec/changelog.Debian.gz", "usr/share/doc/gpurec/README.md",
                     "usr/share/bash-completion/completions/gpurec", "usr/share/zsh/vendor-completions/_gpurec",
                     "usr/share/fish/vendor_completions.d/gpurec.fish"):
            self.assertGreater(os.path.getsize(os.path.join(self.root, path)), 100, path)
        in_etc = [os.path.join(folder, name)[len(self.root):]
                  for folder, _, names in os.walk(os.path.join(self.root, "etc")) for name in names]
        self.assertEqual(self.control("conffiles").split(), in_etc)
        copyright = read(self.root, "usr/share/doc/gpurec/copyright")
        self.assertIn(" Permission is hereby granted", copyright)
        self.assertNotIn("@", copyright)
        self.assertLess(os.path.getsize(os.path.join(self.root, "usr/bin/gpurec")), os.path.getsize(self.binary))

    def test_the_scripts_are_shell(self):
        for name in ("postinst", "prerm", "postrm"):
            self.assertTrue(self.control(name).startswith("#!/bin/sh\n"), name)
            run("sh", "-n", os.path.join(self.root, "DEBIAN", name))
        run("bash", "-n", os.path.join(self.root, "usr/share/bash-completion/completions/gpurec"))

    def test_the_tarball_has_one_folder(self):
        names = run("tar", "-tzf", self.tarball).splitlines()
        folder = os.path.basename(self.tarball).removesuffix(".tar.gz")
        self.assertEqual({name.split("/")[0] for name in names}, {folder})
        for name in ("gpurec", "gpurec.1", "gpurec.bash", "LICENSE-MIT", "LICENSE-APACHE", "README.md",
                     "systemd/gpurec.service", "examples/kubernetes/daemonset.yaml"):
            self.assertIn(f"{folder}/{name}", names)

    def test_the_image_is_what_its_digests_say(self):
        image = Image(self.image)
        for descriptor in image.descriptors():
            data = image.bytes(image.path(descriptor))
            self.assertEqual(len(data), descriptor["size"])
            self.assertEqual("sha256:" + hashlib.sha256(data).hexdigest(), descriptor["digest"])
        (layer,) = image.layers()
        files = {entry.name: entry for entry in layer}
        self.assertEqual(files["usr/bin/gpurec"].mode, 0o755)
        self.assertTrue(files["var/lib/gpurec"].isdir())
        self.assertEqual({(entry.uid, entry.gid) for entry in files.values()}, {(0, 0)})
        config = image.config["config"]
        self.assertEqual(config["Entrypoint"], ["/usr/bin/gpurec"])
        self.assertEqual(config["Cmd"][0], "--all")
        self.assertIn("9400/tcp", config["ExposedPorts"])
        self.assertEqual(image.config["architecture"], run("dpkg", "--print-architecture").strip())

    def test_systemd_accepts_the_unit(self):
        if not shutil.which("systemd-analyze"):
            packages.skip(self, "systemd-analyze is missing (Debian: systemd)")
        path = os.path.join(self.folder, "gpurec.service")
        with open(path, "w", encoding="utf-8") as file:
            file.write(read(packages.UNIT).replace("/usr/bin/gpurec", self.binary))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if "gpurec" in line]
        self.assertEqual((done.returncode, complaints), (0, []), done.stderr)


class Sources(unittest.TestCase):
    """The files of packaging/ agree with each other and with the documents."""

    def capabilities(self):
        return set(packages.unit()["CapabilityBoundingSet"].replace("CAP_", "").split())

    def test_the_unit_has_one_set_of_capabilities_and_says_what_for(self):
        settings = packages.unit()
        self.assertEqual(settings["AmbientCapabilities"], settings["CapabilityBoundingSet"])
        security = read(ROOT, "docs", "security.md")
        for name in self.capabilities():
            self.assertRegex(read(packages.UNIT), rf"(?m)^# .*\bCAP_{name}\b.*: ")
            self.assertIn(f"CAP_{name}", security)

    def test_the_unit_reads_its_options_from_the_file_of_the_package(self):
        self.assertEqual(packages.unit()["EnvironmentFile"], "/etc/default/gpurec")
        self.assertIn("$GPUREC_OPTIONS", packages.unit()["ExecStart"])
        lines = [line for line in read(packages.DEFAULTS).splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(lines), 1)
        (options,) = re.fullmatch(r'GPUREC_OPTIONS="([^"]*)"', lines[0]).groups()
        for option in (word for word in options.split() if word.startswith("-")):
            self.assertRegex(read(packages.DEFAULTS), rf"(?m)^# {option}\s")

    def test_the_daemon_set_has_what_the_recorder_needs(self):
        if yaml is None:
            packages.skip(self, "PyYAML is missing (Debian: python3-yaml)")
        folder = os.path.join(PACKAGING, "kubernetes")
        documents = {name: yaml.safe_load(read(folder, name)) for name in os.listdir(folder)}
        names = documents["kustomization.yaml"]["resources"]
        self.assertLessEqual(set(names), documents.keys())
        kinds = [documents[name]["kind"] for name in names]
        self.assertEqual(sorted(kinds), ["DaemonSet", "Namespace"])
        self.assertEqual(documents["kustomization.yaml"]["namespace"], documents["namespace.yaml"]["metadata"]["name"])
        version = re.search(r'^version = "(.*)"', read(ROOT, "Cargo.toml"), re.M).group(1)
        self.assertEqual(documents["kustomization.yaml"]["images"][0]["newTag"], version)
        daemon = documents["daemonset.yaml"]
        pod = daemon["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.assertTrue(pod["hostPID"])
        self.assertEqual(container["image"], documents["kustomization.yaml"]["images"][0]["name"])
        context = container["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"], "add": context["capabilities"]["add"]})
        self.assertEqual(set(context["capabilities"]["add"]), self.capabilities())
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        self.assertEqual(set(paths.values()), mounts.keys())
        writable = [path for path, mount in mounts.items() if not mount.get("readOnly")]
        self.assertEqual(writable, ["/var/lib/gpurec"])
        (output,) = [word for word in container["args"] if word.startswith("--output=")]
        self.assertTrue(output.startswith("--output=/var/lib/gpurec/"))
        (port,) = [port["containerPort"] for port in container["ports"]]
        self.assertIn(f"--metrics=0.0.0.0:{port}", container["args"])
        labels = daemon["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(daemon["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(documents["podmonitor.yaml"]["spec"]["selector"]["matchLabels"], labels)
        containerfile = read(PACKAGING, "container", "Containerfile")
        for name in self.capabilities():
            self.assertIn(name, containerfile)
        for path in paths.values():
            self.assertIn(path, containerfile)

    def test_kubectl_builds_the_folder(self):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is missing; Debian before 13 has none that knows kustomize")
        built = run("kubectl", "kustomize", os.path.join(PACKAGING, "kubernetes"))
        self.assertEqual(len(re.findall(r"(?m)^kind: (?:Namespace|DaemonSet)$", built)), 2)
        self.assertRegex(built, r"(?m)^  namespace: gpurec$")


if __name__ == "__main__":
    unittest.main()
