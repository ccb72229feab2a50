"""What the cluster is made of: each part's Go packages, pinned by `modules/<part>/go.mod` and `go.sum`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.cluster.errors import ClusterError

MODULES = Path(__file__).parent / "modules"


def cache_root() -> Path:
    """Outside the checkout, so that every checkout and every run shares what was built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "strata" / "cluster"


@dataclass(frozen=True)
class Part:
    """One Go build. Its folder in the cache is named by a digest of all that decides what comes out."""

    name: str
    binaries: dict[str, str]  # file name in the cache -> Go package; none for a part that is files alone
    seconds: int  # rough cold build time on 2 cores, told to whoever waits
    upstream: str = ""  # the module whose version is the part's; empty for programs that live here
    tags: str = ""
    version_variable: str = ""  # Go package whose git* variables say the version at run time
    files: tuple[str, ...] = ()  # of the upstream module, put beside the programs
    optional: bool = field(default=False)  # built only when asked for

    @property
    def source(self) -> Path:
        return MODULES / self.name

    @property
    def label(self) -> str:
        """For people: "etcd v3.7.3"."""
        return f"{self.name} {self.version}".rstrip()

    @cached_property
    def version(self) -> str:
        if not self.upstream:
            return ""
        found = re.search(rf"^\s*(?:require )?{re.escape(self.upstream)} (v\S+)", self._go_mod, re.MULTILINE)
        if found is None:
            raise ClusterError(f"{self.source / 'go.mod'} does not require {self.upstream}")
        return found[1]

    @cached_property
    def go_version(self) -> tuple[int, ...]:
        """The least Go release that its go.mod accepts."""
        found = re.search(r"^go ([\d.]+)$", self._go_mod, re.MULTILINE)
        if found is None:
            raise ClusterError(f"{self.source / 'go.mod'} has no `go` line")
        return tuple(int(number) for number in found[1].split("."))

    @property
    def ldflags(self) -> str:
        flags = "-s -w"
        if self.version_variable:
            major, minor = self.version.lstrip("v").split(".")[:2]
            said = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            flags += "".join(f" -X {self.version_variable}.{name}={value}" for name, value in said.items())
        return flags

    @cached_property
    def digest(self) -> str:
        state = hashlib.sha256(json.dumps([self.binaries, self.tags, self.ldflags, self.files]).encode())
        for file in sorted(path for path in self.source.rglob("*") if path.is_file()):
            state.update(f"\0{file.relative_to(self.source)}\0".encode() + file.read_bytes())
        return state.hexdigest()[:12]

    @property
    def folder(self) -> Path:
        return cache_root() / f"{self.name}-{self.digest}"

    @property
    def is_built(self) -> bool:
        # A folder appears under this name only complete, by a rename.
        return self.folder.is_dir()

    @cached_property
    def _go_mod(self) -> str:
        return (self.source / "go.mod").read_text()


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
_CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")

# What kwok makes of pretend nodes and their pods: Ready and Running at once, and gone when deleted.
_KWOK_STAGES = (
    "kustomize/stage/node/fast/node-initialize.yaml",
    "kustomize/stage/pod/fast/pod-ready.yaml",
    "kustomize/stage/pod/fast/pod-complete.yaml",
    "kustomize/stage/pod/fast/pod-delete.yaml",
)
KWOK_STAGES = tuple(Path(stage).name for stage in _KWOK_STAGES)

# Definitions of what clusters of users may have, and the local one gets for a test.
_HTTP_ROUTES = "config/crd/standard/gateway.networking.k8s.io_{}.yaml"
_POOLS = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
_SCALED_OBJECTS = "config/crd/bases/keda.sh_scaledobjects.yaml"

# The longest first: whoever watches learns early how long it will be.
PARTS = (
    Part(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES},
        seconds=330,
        upstream="k8s.io/kubernetes",
        version_variable="k8s.io/component-base/version",
    ),
    Part("helm", {"helm": "helm.sh/helm/v4/cmd/helm"}, seconds=100, upstream="helm.sh/helm/v4"),
    Part(
        "containerd",
        {name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in _CONTAINERD},
        seconds=45,
        upstream="github.com/containerd/containerd/v2",
        tags="no_btrfs,no_devmapper,no_zfs,no_tracing",
    ),
    Part("coredns", {"coredns": "."}, seconds=40, upstream="github.com/coredns/coredns"),
    Part("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, seconds=25, upstream="go.etcd.io/etcd/server/v3"),
    Part("registry", {"registry": "."}, seconds=25, upstream="github.com/distribution/distribution/v3"),
    Part("images", {"pause": "./pause", "probe": "./probe"}, seconds=5),
    Part(
        "kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        seconds=55,
        upstream="sigs.k8s.io/kwok",
        files=_KWOK_STAGES,
        optional=True,
    ),
    Part(
        "gateway-api",
        {},
        seconds=5,
        upstream="sigs.k8s.io/gateway-api",
        files=tuple(_HTTP_ROUTES.format(kind) for kind in ("gatewayclasses", "gateways", "httproutes")),
        optional=True,
    ),
    Part(
        "inference-extension",
        {},
        seconds=5,
        upstream="sigs.k8s.io/gateway-api-inference-extension",
        files=(_POOLS,),
        optional=True,
    ),
    Part(
        "prometheus-adapter",
        {"prometheus-adapter": "sigs.k8s.io/prometheus-adapter/cmd/adapter"},
        seconds=90,
        upstream="sigs.k8s.io/prometheus-adapter",
        optional=True,
    ),
    Part(
        "kube-router",
        {"kube-router": "."},
        seconds=60,
        upstream="github.com/cloudnativelabs/kube-router/v2",
        optional=True,
    ),
    Part("keda", {}, seconds=10, upstream="github.com/kedacore/keda/v2", files=(_SCALED_OBJECTS,), optional=True),
)


def part(name: str) -> Part:
    for candidate in PARTS:
        if candidate.name == name:
            return candidate
    raise ClusterError(f"no part is called {name!r}; there are {', '.join(p.name for p in PARTS)}")


def binary(name: str) -> Path:
    """Where a built program is, or will be."""
    for candidate in PARTS:
        if name in candidate.binaries:
            return candidate.folder / name
    known = ", ".join(binary for candidate in PARTS for binary in candidate.binaries)
    raise ClusterError(f"no part builds {name!r}; there are {known}")
