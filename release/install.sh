#!/bin/sh
# Installs Strata from the bundle in which it lies: `./install.sh --help`.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
registry='' plain_http='' ctr='' namespace=strata-system models=/var/lib/strata-models

usage() {
  cat <<'END'
usage: ./install.sh COMMAND [OPTIONS]

Installs Strata from this bundle. Nothing is fetched from anywhere. Each command compares the files that it uses with
SHA256SUMS first, may be repeated, and goes on where the last attempt ended.

Commands, in the order in which they are used:
  check     compare all files of the bundle with SHA256SUMS
  load      bring the images to where the cluster finds them: into this node's containerd, or into a registry
  models    copy the bundle's models to a directory of this node
  install   install or upgrade the chart with helm; what follows `--` is passed to helm

Options:
  --registry HOST[/PATH]  load: push the images there with skopeo; install: the cluster pulls them from there
  --plain-http            load: the registry speaks HTTP without TLS
  --ctr COMMAND           load: containerd's client with its options; default: `k3s ctr` or `ctr`, whichever is there
  --to DIR                models: default /var/lib/strata-models
  --namespace NAME        install: default strata-system

A cluster of one node, or of a few without a registry: `load` and `models` on each node that shall run Strata, then
  ./install.sh install
A cluster with a registry (log in with `skopeo login` first where it wants that):
  ./install.sh load --registry registry.internal:5000/strata
  ./install.sh install --registry registry.internal:5000/strata -- --set 'imagePullSecrets[0].name=registry-internal'
Then a model: examples/air-gapped.yaml is one to begin with.
END
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

say() {
  printf '· %s\n' "$*"
}

need() {
  command -v "$1" >/dev/null 2>&1 || die "$1 is not installed here; $2"
}

# verify PATTERN: files of SHA256SUMS whose path it fits are whole.
verify() {
  need sha256sum 'it is in the package coreutils'
  cd "$here"
  sums=$(grep "^[0-9a-f]*  $1" SHA256SUMS) || die "SHA256SUMS has no $1: the bundle is not whole; unpack it again"
  said=$(printf '%s\n' "$sums" | sha256sum -c - 2>&1) || {
    printf '%s\n' "$said" | grep -v ': OK$' >&2
    die 'files of the bundle are not as they were made; copy and unpack it again'
  }
  say "$(printf '%s\n' "$sums" | wc -l | tr -d ' ') file(s) of the bundle are as they were made"
}

find_ctr() {
  [ -z "$ctr" ] || return 0
  for candidate in 'k3s ctr' ctr; do
    if command -v "${candidate%% *}" >/dev/null 2>&1; then
      ctr=$candidate
      return
    fi
  done
  die 'neither k3s nor ctr is installed here; run this on a node of the cluster, name containerd'\''s client with --ctr
  (RKE2: --ctr "/var/lib/rancher/rke2/bin/ctr --address /run/k3s/containerd/containerd.sock"), or use --registry'
}

# each COMMAND: runs it with path, name, version and digest of every image.
each() {
  while read -r file name version digest <&3; do
    say "$name $version"
    "$1" "$here/$file" "$name" "$version" "$digest"
  done 3<"$here/images.txt"
}

push_image() {
  skopeo copy --quiet --preserve-digests ${plain_http:+--dest-tls-verify=false} "oci-archive:$1" "docker://$registry/$2:$3"
}

import_image() {
  # Imported again it would be unpacked again, for minutes.
  if ! $ctr --namespace k8s.io images list --quiet | grep -qxF "localhost/$2@$4"; then
    $ctr --namespace k8s.io images import "$1"
    # The chart names images by digest; containerd knows them by that name only once it was given.
    $ctr --namespace k8s.io images tag --force "localhost/$2:$3" "localhost/$2@$4"
  fi
  # The kubelet deletes images that no pod uses when the disk fills up, and could not pull these again.
  $ctr --namespace k8s.io images label "localhost/$2@$4" io.cri-containerd.pinned=pinned >/dev/null
}

load() {
  verify images
  if [ -n "$registry" ]; then
    need skopeo 'it is in the package skopeo of most distributions'
    each push_image
    say "the images are in $registry; now ./install.sh install --registry $registry"
  else
    find_ctr
    each import_image
    say 'the images are in the containerd of this node'
  fi
}

copy_models() {
  [ -d "$here/models" ] || die 'this bundle has no models: make one with MODELS=NAME=SOURCE'
  verify models/
  mkdir -p "$models"
  for model in "$here"/models/*/; do
    name=$(basename "$model")
    # Beside, then renamed: a model that is half copied is never served.
    rm -rf "$models/.$name" && cp -R "$model" "$models/.$name"
    rm -rf "${models:?}/$name" && mv "$models/.$name" "$models/$name"
    say "$name: source hostpath://$models/$name"
  done
}

install_chart() {
  verify charts/
  need helm 'it is one program: https://helm.sh/docs/intro/install'
  if [ -z "${KUBECONFIG:-}" ] && [ ! -e "${HOME:-}/.kube/config" ] && [ -r /etc/rancher/k3s/k3s.yaml ]; then
    export KUBECONFIG=/etc/rancher/k3s/k3s.yaml
  fi
  helm upgrade strata "$here"/charts/strata-[0-9]*.tgz --install --namespace "$namespace" --create-namespace \
    --set "image.registry=${registry:-localhost}" --wait --timeout 10m "$@"
}

[ $# -gt 0 ] || {
  usage >&2
  exit 2
}
command=$1
shift
while [ $# -gt 0 ]; do
  case $1 in
    --registry | --ctr | --to | --namespace)
      [ $# -gt 1 ] || die "$1 needs a value; --help says which"
      case $1 in
        --registry) registry=${2%/} ;;
        --ctr) ctr=$2 ;;
        --to) models=${2%/} ;;
        --namespace) namespace=$2 ;;
      esac
      shift 2
      ;;
    --plain-http) plain_http=1 && shift ;;
    --help | -h) usage && exit ;;
    --) shift && break ;;
    *) die "unknown option $1; ./install.sh --help names those that there are" ;;
  esac
done
case $models in /*) ;; *) die "--to $models: give an absolute path" ;; esac
case $registry in *://*) die "--registry $registry: give HOST[:PORT][/PATH], without a scheme" ;; esac

case $command in
  check) verify . ;;
  load) load ;;
  models) copy_models ;;
  install) install_chart "$@" ;;
  --help | -h | help) usage ;;
  *) die "unknown command $command; there are check, load, models and install (./install.sh --help)" ;;
esac
