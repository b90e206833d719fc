# A cluster that is not ours: looked at, never made or removed, and only under the context's name.
# shellcheck shell=bash

external_tool() { command -v "$1" || "$FLYBALL_ROOT/hack/lib/binaries" path "$1"; } # kubectl, helm: the user's own, or ours

# A kubeconfig of that context alone, so that nothing run with it can reach another cluster.
external_kubeconfig() {
  local kubectl file="$FLYBALL_CACHE/external/kubeconfig"
  [[ -n ${FLYBALL_CONTEXT:-} ]] || die "FLYBALL_CLUSTER=external needs FLYBALL_CONTEXT, the kubeconfig context to use"
  kubectl=$(external_tool kubectl)
  mkdir -p "${file%/*}"
  # What the environment names may be this very file, from an earlier `hack/cluster env`.
  (umask 077 && "$kubectl" config view --minify --flatten --context "$FLYBALL_CONTEXT" >"$file.new") ||
    die "there is no context '$FLYBALL_CONTEXT' in the kubeconfig"
  mv "$file.new" "$file"
  echo "$file"
}

external() { # VERB
  local kubectl helm file
  file=$(external_kubeconfig)
  kubectl=$(external_tool kubectl)
  case $1 in
    up | status)
      "$kubectl" --kubeconfig "$file" --request-timeout=10s get --raw /readyz >/dev/null ||
        die "the cluster of context '$FLYBALL_CONTEXT' does not answer"
      log "cluster: context '$FLYBALL_CONTEXT' answers"
      ;;
    down) log "cluster: external, left alone" ;;
    env)
      helm=$(external_tool helm)
      printf 'export KUBECONFIG=%q\n' "$file"
      # Behind the user's own: a folder like /usr/bin must not hide what stands before it.
      # shellcheck disable=SC2016
      printf 'export PATH=$PATH:%q:%q\n' "$(dirname "$kubectl")" "$(dirname "$helm")"
      ;;
    *) die "'$1' works only with the local cluster" ;;
  esac
}
