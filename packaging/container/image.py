#!/usr/bin/env python3
"""Makes an OCI image from packaging/container/Containerfile, without a daemon.

    image.py CONTAINERFILE CONTEXT ARCHITECTURE VERSION OUT.tar

In: a Containerfile of FROM scratch, LABEL, COPY, WORKDIR, EXPOSE, ENTRYPOINT
and CMD (anything else is refused), the folder with the files that it copies,
amd64 or arm64, and SOURCE_DATE_EPOCH, the time of every file. Out: an OCI
archive for `podman load`, `docker load`, `skopeo copy oci-archive:` and
`ctr image import`. The same input gives the same bytes. Not here: pushing it.
"""
import gzip
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
import time

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def instructions(text):
    """Yields (word, rest) of each instruction."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word.upper(), rest.strip()


def entry(name, moment, size=None, mode=0o755):
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    info.size, info.mode, info.mtime = size or 0, mode, moment
    return info


class Layer:
    """One layer with all files, and the folders above them."""

    def __init__(self, moment):
        self.moment, self.folders, self.data = moment, set(), io.BytesIO()
        self.tar = tarfile.open(fileobj=self.data, mode="w", format=tarfile.GNU_FORMAT)

    def folder(self, path):
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            if name not in self.folders:
                self.folders.add(name)
                self.tar.addfile(entry(name, self.moment))

    def file(self, path, source):
        self.folder(os.path.dirname(path))
        with open(source, "rb") as file:
            data = file.read()
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.tar.addfile(entry(path.lstrip("/"), self.moment, len(data), mode), io.BytesIO(data))

    def bytes(self):
        self.tar.close()
        return self.data.getvalue()


def build(containerfile, context, moment):
    """Returns the layer, as bytes, and the part of the image's configuration that the file sets."""
    layer, config = Layer(moment), {}
    for number, (word, rest) in enumerate(instructions(containerfile)):
        if (word == "FROM") != (number == 0) or word == "FROM" and rest != "scratch":
            sys.exit("image.py: the file must begin with FROM scratch, and have no other FROM")
        if word == "LABEL":
            config.setdefault("Labels", {}).update(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                path = target + os.path.basename(source) if target.endswith("/") else target
                layer.file(path, os.path.join(context, source))
        elif word == "WORKDIR":
            layer.folder(rest)
            config["WorkingDir"] = rest
        elif word == "EXPOSE":
            config.setdefault("ExposedPorts", {})[f"{rest}/tcp"] = {}
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.capitalize()] = json.loads(rest)
        elif word != "FROM":
            sys.exit(f"image.py: {word} is not known here: use FROM scratch, LABEL, COPY, WORKDIR, EXPOSE, ENTRYPOINT, CMD")
    return layer.bytes(), config


class Archive:
    """The files of an OCI archive."""

    def __init__(self):
        self.files = {}

    def blob(self, kind, data):
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def write(self, path, moment):
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for folder in ("blobs", "blobs/sha256"):
                tar.addfile(entry(folder, moment))
            for name, data in sorted(self.files.items()):
                tar.addfile(entry(name, moment, len(data), 0o644), io.BytesIO(data))


def as_json(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def main(containerfile, context, architecture, version, out):
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    with open(containerfile, encoding="utf-8") as file:
        layer, config = build(file.read(), context, moment)
    config.setdefault("Labels", {})["org.opencontainers.image.version"] = version
    archive = Archive()
    packed = archive.blob(LAYER, gzip.compress(layer, 9, mtime=0))
    image = archive.blob(CONFIG, as_json({
        "architecture": architecture, "os": "linux", "created": created, "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "scripts/package image"}],
    }))
    manifest = archive.blob(MANIFEST, as_json(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": image, "layers": [packed]}))
    tag = f"gpurec:{version}"
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version,
                               "io.containerd.image.name": f"localhost/{tag}"}
    archive.files["index.json"] = as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]})
    archive.files["oci-layout"] = as_json({"imageLayoutVersion": "1.0.0"})
    # For docker before 25.
    path = "blobs/" + image["digest"].replace(":", "/")
    archive.files["manifest.json"] = as_json(
        [{"Config": path, "RepoTags": [tag], "Layers": ["blobs/" + packed["digest"].replace(":", "/")]}])
    archive.write(out, moment)


if __name__ == "__main__":
    main(*sys.argv[1:])
