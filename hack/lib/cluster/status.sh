# What runs, what does not.
# shellcheck shell=bash disable=SC2154

cluster_status() {
  local failed=0 name
  line() { printf '%-26s %s\n' "$1" "$2"; }
  check() { # NAME COMMAND...: the command's output is the detail
    local detail
    if detail=$("${@:2}" 2>/dev/null); then line "$1" "ok${detail:+  $detail}"; else line "$1" "FAILED${detail:+  $detail}"; failed=1; fi
  }
  if ! box_init >/dev/null; then
    line cluster "down"
    return 1
  fi
  bin=$("$FLYBALL_ROOT/hack/lib/binaries" dir)
  PATH=$bin:$PATH
  export KUBECONFIG=$kubeconfig
  for name in "${daemons[@]}"; do check "$name" daemon_alive "$name"; done
  if [[ -e $dir/pid/kwok ]]; then check kwok daemon_alive kwok; fi
  check "API server" api_ready 10
  check version server_version
  check "node $node" node_ready
  check CoreDNS deployment_served kube-system coredns
  check Prometheus deployment_served monitoring prometheus
  if [[ -e $dir/ready ]]; then line "brought up" ok; else line "brought up" "FAILED  hack/cluster up did not finish"; failed=1; fi
  line containerd "$(containerd --version | awk '{print $3}')"
  line kubeconfig "$kubeconfig"
  line Prometheus "http://$prometheus_ip:9090"
  line "audit log" "$dir/log/audit.log"
  line logs "$dir/log"
  return "$failed"
}

deployment_served() { # NAMESPACE NAME
  [[ $(kubectl --request-timeout=10s -n "$1" get deployment "$2" -o 'jsonpath={.status.readyReplicas}') -ge 1 ]]
}

server_version() { kubectl --request-timeout=10s get --raw /version | jq -er .gitVersion; }
