# Configuration files and command lines of the cluster's daemons.
# shellcheck shell=bash disable=SC2154

command_write() { # NAME COMMAND...: $dir/cmd/NAME, so that a daemon can be started again exactly as it was
  {
    printf '#!/bin/sh\necho $$ >%q\nexec' "$dir/pid/$1"
    printf ' %q' "${@:2}"
    echo
  } >"$dir/cmd/$1"
  chmod +x "$dir/cmd/$1"
}

config_write() {
  local pki=$dir/pki conf=$dir/conf
  : >"$conf/resolv.conf"

  cat >"$conf/audit.yaml" <<YAML
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: # who wrote what, so that tests prove that there never are two writers; and all that tenants' accounts ask, for refusals
- level: None
  userGroups: [system:nodes, system:serviceaccounts:kube-system, system:serviceaccounts:monitoring]
  resources: [{group: "", resources: [events]}, {group: events.k8s.io}, {group: coordination.k8s.io}]
- {level: None, resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]}
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
- {level: None, userGroups: [system:serviceaccounts:kube-system, system:serviceaccounts:monitoring]}
- {level: Metadata, userGroups: [system:serviceaccounts]}
- {level: None}
YAML

  cat >"$conf/containerd.toml" <<TOML
version = 3
root = "$images"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  discard_unpacked_layers = true
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "$pause_image"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true # a container of ours may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$conf/cni"
TOML
  # The same store without Kubernetes' view of it, to drop what an earlier cluster's pods left.
  sed 's/^disabled_plugins = \[/&"io.containerd.grpc.v1.cri", /; /^\[plugins/,$d' "$conf/containerd.toml" >"$conf/containerd-bare.toml"

  jq -n --arg subnet "$node_pods" '{cniVersion: "1.0.0", name: "flyball", plugins: [{type: "bridge", bridge: "cni0",
    isGateway: true, isDefaultGateway: true, ipMasq: false, hairpinMode: true,
    ipam: {type: "host-local", ranges: [[{subnet: $subnet}]]}}]}' >"$conf/cni/10-flyball.conflist"

  cat >"$conf/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
address: 0.0.0.0
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet-serving.crt
tlsPrivateKeyFile: $pki/kubelet-serving.key
clusterDomain: cluster.local
clusterDNS: [$dns_ip]
resolvConf: $conf/resolv.conf
enforceNodeAllocatable: [pods]
systemReserved: {cpu: 200m, memory: 1Gi}
evictionHard: {memory.available: 200Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 10s
volumePluginDir: /var/lib/kubelet/volumeplugins
registerNode: true
YAML

  cat >"$conf/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $conf/proxy.kubeconfig}
mode: nftables
clusterCIDR: $pods_cidr
hostnameOverride: $node
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML

  command_write etcd etcd --name=flyball --data-dir="$dir/etcd" --unsafe-no-fsync \
    --listen-client-urls=https://127.0.0.1:2379 --advertise-client-urls=https://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --client-cert-auth --trusted-ca-file="$pki/ca.crt" \
    --cert-file="$pki/etcd.crt" --key-file="$pki/etcd.key"
  command_write containerd containerd --config "$conf/containerd.toml"
  command_write kube-apiserver kube-apiserver --etcd-servers=https://127.0.0.1:2379 --etcd-cafile="$pki/ca.crt" \
    --etcd-certfile="$pki/apiserver-etcd.crt" --etcd-keyfile="$pki/apiserver-etcd.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged \
    --bind-address=0.0.0.0 --secure-port=6443 --advertise-address="$node_ip" --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-client-certificate="$pki/apiserver-kubelet.crt" \
    --kubelet-client-key="$pki/apiserver-kubelet.key" --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file="$pki/sa.pub" \
    --service-account-signing-key-file="$pki/sa.key" --service-cluster-ip-range="$services_cidr" \
    --enable-aggregator-routing \
    --audit-policy-file="$conf/audit.yaml" --audit-log-path="$dir/log/audit.log" --audit-log-maxsize=1000
  command_write kube-controller-manager kube-controller-manager --kubeconfig="$conf/controller-manager.kubeconfig" \
    --authentication-kubeconfig="$conf/controller-manager.kubeconfig" \
    --authorization-kubeconfig="$conf/controller-manager.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --allocate-node-cidrs \
    --cluster-cidr="$pods_cidr" --service-cluster-ip-range="$services_cidr" --kube-api-qps=100 --kube-api-burst=200 \
    --node-monitor-grace-period="${FLYBALL_NODE_GRACE:-50s}" --flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins
  command_write kube-scheduler kube-scheduler --kubeconfig="$conf/scheduler.kubeconfig" \
    --authentication-kubeconfig="$conf/scheduler.kubeconfig" --authorization-kubeconfig="$conf/scheduler.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false
  command_write kubelet kubelet --config="$conf/kubelet.yaml" --kubeconfig="$conf/kubelet.kubeconfig" \
    --hostname-override="$node" --node-ip="$node_ip" --v=2
  command_write kube-proxy kube-proxy --config="$conf/proxy.yaml"
  command_write kwok kwok --kubeconfig="$kubeconfig" --manage-all-nodes=false \
    --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake --node-lease-duration-seconds=40
}
