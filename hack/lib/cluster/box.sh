# The box of namespaces the cluster lives in: find it, make it, run things in it, remove it without a trace.
# shellcheck shell=bash disable=SC2154

# Every host process that carries our marker: the box's first process and the unshare above it.
box_pids() {
  # The pattern comes from a file, or grep would find itself.
  { grep -lzxFf <(printf '%s\n' "$marker") /proc/[0-9]*/cmdline 2>/dev/null || true; } | cut -d/ -f3
}

# The host's pid of the box's first process; fails when there is no box.
box_init() {
  local pid
  for pid in $(box_pids); do
    if awk '/^NSpid:/ && NF > 2 && $NF == 1 {found = 1} END {exit !found}' "/proc/$pid/status" 2>/dev/null; then
      echo "$pid"
      return
    fi
  done
  return 1
}

# The folder of a cluster in another one that runs with our addresses, if there is one.
box_elsewhere() {
  local pid folder
  for pid in $({ grep -lz "^${marker%%=*}=/" /proc/[0-9]*/cmdline 2>/dev/null || true; } | cut -d/ -f3); do
    folder=$({ tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | sed -n "s#^${marker%%=*}=##p" | head -n 1)
    if [[ -n $folder && $folder != "$dir" ]] && nsenter -t "$pid" -n ip link show "$link_box" >/dev/null 2>&1; then
      echo "$folder"
      return
    fi
  done
}

# box COMMAND...: runs it in the box with a clean environment.
box() {
  local init
  init=${box_pid:-$(box_init)} || die "the cluster does not run"
  nsenter -t "$init" -m -n -p -u -i -- env -i "PATH=$bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    HOME=/root "TERM=${TERM:-dumb}" "$@"
}

# box_ctr ARGUMENT...: containerd's client, for what Kubernetes has there. The warnings are of cgroup v1.
box_ctr() { box CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 ctr -n k8s.io "$@"; }

box_start() {
  mkdir -p "$dir"/{var/lib/kubelet,var/lib/cni,var/log/pods,var/tmp,log,cmd,pid,conf/cni,pki,etcd} "$images"
  setsid unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc \
    "$lib/box-init" "$marker" "$dir" "$node" >"$dir/log/box.log" 2>&1 </dev/null {lock}>&- &
  local tries=0
  until [[ -e $dir/box.ready ]]; do
    sleep 0.05
    ((++tries < 1200)) || { cat "$dir/log/box.log" >&2; die "the box did not start"; }
  done
  box_pid=$(box_init)

  ip link add "$link_host" type veth peer name "$link_box" netns "$box_pid"
  ip addr add "$host_ip/30" dev "$link_host"
  ip link set "$link_host" up
  box ip addr add "$node_ip/30" dev "$link_box"
  box ip link set "$link_box" up
  box ip route add default via "$host_ip"
  box ip route add unreachable "$pods_cidr" metric 4096 # pods of fake nodes fail at once, instead of looping to the host
  ip route add "$pods_cidr" via "$node_ip"
  ip route add "$services_cidr" via "$node_ip"

  # Nothing in the box opens a connection to the host or beyond, but for the ports asked for.
  local allowed=
  [[ -z ${FLYBALL_HOST_PORTS:-} ]] || allowed="ip daddr $host_ip tcp dport { $FLYBALL_HOST_PORTS } accept;"
  box nft -f - <<NFT
table inet flyball {
  chain leaving { oifname != "$link_box" return; ct state established,related accept; $allowed counter reject with icmpx admin-prohibited; }
  chain forwarded { type filter hook forward priority 0; jump leaving; }
  chain sent { type filter hook output priority 0; jump leaving; }
}
NFT
  local controller
  for controller in $(box_cgroup_roots); do
    mkdir -p "$controller/$cgroup"
    [[ ! -e $controller/cpuset.cpus ]] || cat "$controller/cpuset.cpus" >"$controller/$cgroup/cpuset.cpus"
    [[ ! -e $controller/cpuset.mems ]] || cat "$controller/cpuset.mems" >"$controller/$cgroup/cpuset.mems"
  done
}

box_cgroup_roots() {
  local root
  for root in /sys/fs/cgroup/*/; do
    [[ -e $root/cgroup.procs && $root != */unified/ ]] && echo "${root%/}"
  done
  return 0
}

# daemon_start NAME: runs $dir/cmd/NAME in the box, detached; the command leaves its pid, as the box sees it, in $dir/pid/NAME.
daemon_start() {
  rm -f "$dir/pid/$1"
  # shellcheck disable=SC2016
  box bash -c 'setsid "$1/cmd/$2" >>"$1/log/$2.log" 2>&1 </dev/null &' - "$dir" "$1" {lock}>&-
}

# daemon_alive NAME
daemon_alive() {
  local pid
  pid=$(cat "$dir/pid/$1" 2>/dev/null) && [[ -n $pid ]] && box kill -0 "$pid" 2>/dev/null
}

# daemon_stop NAME [SECONDS]: TERM, then KILL. The API server waits for its watches for as long as one lets it.
daemon_stop() {
  local pid i
  pid=$(cat "$dir/pid/$1" 2>/dev/null) || return 0
  box kill -TERM "$pid" 2>/dev/null || return 0
  for ((i = 0; i < ${2:-8} * 10; i++)); do
    box kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  box kill -KILL "$pid" 2>/dev/null || true
}

# Everything of the cluster but the image store, however the last run ended. Safe to call when there is nothing.
box_remove() {
  local pid tries=0 root left
  unset box_pid
  for pid in $(box_pids); do kill -KILL "$pid" 2>/dev/null || true; done
  until [[ -z $(box_pids) ]]; do
    sleep 0.05
    ((++tries < 400)) || die "processes survive KILL: $(box_pids | tr '\n' ' ')"
  done
  # Link and routes would go with the box's network, but the kernel may take ten seconds for that.
  ip link delete "$link_host" 2>/dev/null || true
  for ((tries = 0; tries < 100; tries++)); do
    left=
    for root in /sys/fs/cgroup/*/"$cgroup"; do
      [[ -d $root ]] || continue
      find "$root" -depth -type d -exec rmdir {} + 2>/dev/null || left=$root
    done
    [[ -n $left ]] || break
    sleep 0.1
  done
  [[ -z $left ]] || die "cgroup $left is still in use"
  # Mounts were the box's own; if one leaked into the host, deleting through it would be a disaster.
  if awk -v d="$dir/" 'index($5, d) == 1 {found = 1} END {exit !found}' /proc/self/mountinfo; then
    die "something is mounted below $dir; not deleting it"
  fi
  [[ ! -d $dir ]] || find "$dir" -mindepth 1 -maxdepth 1 ! -name images ! -name lock -exec rm -rf {} +
}
