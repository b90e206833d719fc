# Bringing the cluster up.
# shellcheck shell=bash disable=SC2154,SC2034 # names.sh, and variables that other parts read

preconditions() {
  ((EUID == 0)) || die "needs root: it makes namespaces, links and cgroups (or set FLYBALL_CLUSTER=external and FLYBALL_CONTEXT)"
  [[ -d /sys/fs/cgroup/cpu && -d /sys/fs/cgroup/memory ]] ||
    die "needs cgroup v1 (or hybrid) controllers in /sys/fs/cgroup; on a pure v2 host use another cluster with FLYBALL_CLUSTER=external"
}

space_check() { # what an earlier cluster has imported needs no room again
  local free held=0
  free=$(df --output=avail -BG "$dir" | tail -n 1 | tr -dc 0-9)
  [[ ! -d $images ]] || held=$(du -sBG "$images" | cut -dG -f1)
  ((free + held >= 15)) || die "needs $((15 - held)) GB free below $dir, has $free GB"
}

foreign_check() { # after remnants are gone, what still holds our names is not ours
  local range found
  ! ip link show "$link_host" >/dev/null 2>&1 || die "a network link named $link_host exists and is not ours"
  for range in "$host_ip/30" "$pods_cidr" "$services_cidr"; do
    found=$(ip -4 route show root "$range")
    [[ -z $found ]] || die "the address range $range is in use here: ${found%%$'\n'*}; FLYBALL_CLUSTER_INDEX=1..9 chooses other ranges"
  done
}

# Every question has an end: a paused API server takes connections and says nothing.
api_ready() { kubectl --request-timeout="${1:-2}s" get --raw /readyz >/dev/null 2>&1; } # [SECONDS]

# wait_for WHAT SECONDS LOG COMMAND...: polls; on time-out the log's end and a failure.
wait_for() {
  local what=$1 limit=$2 logfile=$3 end=$((SECONDS + $2))
  shift 3
  until "$@"; do
    if ((SECONDS >= end)); then
      tail -n 20 "$logfile" >&2
      die "$what not there after $limit s; logs are in $dir/log"
    fi
    sleep 0.1
  done
}

rendered() { # MANIFEST: with the addresses and images of this cluster
  sed -e "s|\$DNS_IP|$dns_ip|; s|\$PROMETHEUS_IP|$prometheus_ip|; s|\$NODE|$node|" \
    -e "s|\$COREDNS_IMAGE|$(archive_ref "$bin/coredns")|; s|\$PROMETHEUS_IMAGE|$(archive_ref "$bin/prometheus")|" "$lib/manifests/$1.yaml"
}

containerd_ready() { box_ctr version >/dev/null 2>&1; }

# An earlier cluster's pods would otherwise be taken up again by this one's kubelet.
containerd_forget_pods() {
  [[ -e $images/io.containerd.metadata.v1.bolt/meta.db ]] || return 0
  command_write containerd-bare containerd --config "$dir/conf/containerd-bare.toml"
  rm -rf "$images/io.containerd.grpc.v1.cri" "$images/io.containerd.runtime.v2.task"
  daemon_start containerd-bare
  wait_for "containerd" 90 "$dir/log/containerd-bare.log" containerd_ready
  local ids
  ids=$(box_ctr containers ls -q)
  # shellcheck disable=SC2086 # identifiers are words
  [[ -z $ids ]] || box_ctr containers rm $ids >/dev/null
  ids=$(box_ctr sandboxes ls | awk 'NR > 1 {print $1}')
  # Forced, and with complaints: none of them runs.
  # shellcheck disable=SC2086
  [[ -z $ids ]] || box_ctr sandboxes rm --force $ids >/dev/null 2>&1
  ids=$(box_ctr leases ls -q)
  # shellcheck disable=SC2086
  [[ -z $ids ]] || box_ctr leases rm --sync $ids >/dev/null
  daemon_stop containerd-bare
}

default_account() { kubectl --request-timeout=10s get serviceaccount default -o name >/dev/null 2>&1; }

node_ready() {
  [[ $(kubectl --request-timeout=10s get node "$node" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null) == True ]]
}

cluster_start() {
  log "cluster: starting"
  box_start
  pki_make
  pause_image=$(archive_ref "$bin/pause")
  config_write
  daemon_start etcd
  daemon_start kube-apiserver
  containerd_forget_pods
  daemon_start containerd
  wait_for containerd 90 "$dir/log/containerd.log" containerd_ready
  imported=$(box_ctr images ls -q)
  local tool
  for tool in pause coredns prometheus; do archive_import "$bin/$tool"; done
  wait_for "the API server" 180 "$dir/log/kube-apiserver.log" api_ready
  log "cluster: API server ready"
  # Not earlier: the controller-manager exits when the API server has not made its bootstrap objects yet.
  for tool in kube-controller-manager kube-scheduler kubelet kube-proxy; do daemon_start "$tool"; done
  for tool in base coredns prometheus; do rendered "$tool"; echo ---; done | kubectl apply --server-side -f - >"$dir/log/manifests.log"
  wait_for "node $node" 180 "$dir/log/kubelet.log" node_ready
  log "cluster: node ready"
  kubectl -n kube-system rollout status deployment/coredns --timeout=180s >/dev/null ||
    die "CoreDNS did not start: hack/cluster exec kubectl, logs in $dir/log"
  kubectl -n monitoring rollout status deployment/prometheus --timeout=180s >/dev/null ||
    die "Prometheus did not start, logs in $dir/log"
  wait_for "the default service account" 90 "$dir/log/kube-controller-manager.log" \
    default_account
}

# A busy machine may answer late, and a cluster that does not answer is made anew, with nothing left of what is in it.
cluster_answers() {
  local end=$((SECONDS + 60))
  if api_ready && node_ready; then return; fi
  log "cluster: waiting for the one that runs to answer"
  until api_ready && node_ready; do
    ((SECONDS < end)) || return 1
    sleep 1
  done
}

# fake_nodes COUNT PODS: nodes that kwok plays, each of so many pods, with eight GPUs and a taint; only what is missing.
# The name has the number of pods: a node that is there cannot be given another.
fake_nodes() {
  daemon_alive kwok || daemon_start kwok
  local i name
  for ((i = 0; i < $1; i++)); do
    name=fake-$i
    (($2 == 110)) || name=fake-$2-$i
    cat <<YAML
---
apiVersion: v1
kind: Node
metadata:
  name: $name
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {type: kwok, kubernetes.io/hostname: $name, kubernetes.io/os: linux, kubernetes.io/arch: amd64}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status:
  capacity: &resources {cpu: "64", memory: 512Gi, pods: "$2", nvidia.com/gpu: "8"}
  allocatable: *resources
YAML
  done | kubectl create -f - >>"$dir/log/fake-nodes.log" 2>&1 || grep -q AlreadyExists "$dir/log/fake-nodes.log"
  kubectl wait --for=condition=Ready node -l type=kwok --timeout=180s >/dev/null
  log "cluster: $(kubectl get nodes -l type=kwok -o name | wc -l) fake nodes ready"
}

cluster_up() { # FAKE-NODES PODS-OF-EACH
  ensure_apt runc containernetworking-plugins nftables iproute2 jq openssl
  # Killed with us: a build must not go on by itself.
  bin=$(exec setpriv --pdeathsig KILL -- "$FLYBALL_ROOT/hack/lib/binaries" dir {lock}>&-)
  PATH=$bin:$PATH
  export KUBECONFIG=$kubeconfig
  if [[ -e $dir/ready ]] && box_init >/dev/null && cluster_answers; then
    log "cluster: already up"
    [[ $(cat "$dir/ready") == "$(configuration)" ]] ||
      log "cluster: it runs an earlier configuration of these scripts; hack/cluster down && hack/cluster up renews it"
  else
    trap interrupted INT TERM # not before: a cluster that was up is not ours to remove
    if [[ -n $(box_pids) || -e $dir/pki ]]; then log "cluster: removing what an earlier run left"; fi
    box_remove
    foreign_check
    space_check
    cluster_start
    configuration >"$dir/ready"
    trap - INT TERM
  fi
  (($1 == 0)) || fake_nodes "$1" "$2"
  log "cluster: up; eval \"\$(hack/cluster env)\" gives kubectl and helm"
}

configuration() { { echo "$bin"; cat "$lib"/*.sh "$lib"/box-init "$lib"/manifests/*; } | hash_of -; }
