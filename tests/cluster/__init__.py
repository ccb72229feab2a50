"""A real Kubernetes cluster on one Linux machine: control plane, one node, DNS and an image registry, without Docker.

Only the standard library is used, so that ``python3 -m tests.cluster up`` runs before any virtual environment exists.
From Python (the repository root must be importable: ``pythonpath = ["."]`` for pytest)::

    from tests.cluster import Cluster

    c = Cluster.up("demo")                 # idempotent; builds missing parts; returns once node and DNS answer
    c = Cluster.up("test", kwok=True)      # another instance beside it, with kwok for pretend nodes
    c = Cluster.attach("demo")             # of a cluster that is up; ClusterError if it is not

    c.kubeconfig                           # Path; certificates embedded, usable from the host
    c.registry                             # "10.96.255.2:5000": plain HTTP, same address for buildah and for pods
    c.node                                 # name of the one real node
    c.bin("helm")                          # Path of a built binary: kubectl, helm, ctr, etcd, ...
    c.env()                                # os.environ plus KUBECONFIG, STRATA_REGISTRY and a PATH with kubectl, helm

    c.kubectl("get", "pods", "-A")         # stdout; ClusterError with stderr when it fails
    c.kubectl("apply", "-f", "-", input=text)
    c.get_json("nodes", c.node)            # parsed `kubectl get -o json`
    c.wait_for(condition, seconds, what)   # polls a callable until true; ClusterError naming `what` otherwise
    c.on_node("ls", "/var/lib")            # stdout of a command that sees the node's files and network
    c.load_image(path)                     # imports an OCI/docker archive into the node, past the registry
    c.push_binary_image("probe", path)     # "10.96.255.2:5000/probe:<digest>": an image that holds one static binary

    with c.enforced_policies(): ...        # NetworkPolicies hold meanwhile; nothing heeds them else

    c.add_pretend_gpu(count=1, product="NVIDIA-GeForce-RTX-3090", vram_mib=24576)  # on the real node
    c.remove_pretend_gpu()                 # labels and resource taken back
    c.add_gpu_nodes(500, product="NVIDIA-GeForce-RTX-4090", vram_mib=24564, count=1)  # kwok; returns the node names
    c.remove_gpu_nodes()

    c.stop("kubelet"); c.start("kubelet")  # break and mend one process: any name `status` shows
    c.kill("kubelet")                      # as a crash does
    c.logs("kube-apiserver", lines=50)     # last lines of a process' log
    c.down()                               # nothing left: processes, mounts, namespaces, routes, cgroups, files
"""

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError

__all__ = ["Cluster", "ClusterError"]
