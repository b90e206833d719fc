# Building images with buildah (or docker), and bringing them into the cluster's containerd.
# shellcheck shell=bash disable=SC2154

builder() { # buildah where it is or can be had, else a docker that works
  if ! command -v buildah >/dev/null && docker info >/dev/null 2>&1; then echo docker; else echo buildah; fi
}

# A store of our own: nothing of the user's images is touched, and removing the folder removes it.
buildah_command=(env "TMPDIR=$FLYBALL_CACHE/buildah/tmp" BUILDAH_ISOLATION=chroot buildah --root "$FLYBALL_CACHE/buildah/root"
  --runroot "$FLYBALL_CACHE/buildah/run" --storage-driver overlay)
buildah_do() {
  mkdir -p "$FLYBALL_CACHE/buildah/tmp"
  "${buildah_command[@]}" "$@"
}

# What the Dockerfiles start from where no registry can be reached: Debian's own Python, from the mirror apt uses.
base_packages=python3,python3-venv,ca-certificates,busybox-static
base_ref() { echo "localhost/flyball-base:bookworm-$(hash_of - <<<"$base_packages")"; }

base_make() {
  local ref mirror work container
  ref=$(base_ref)
  if buildah_do inspect --type image "$ref" >/dev/null 2>&1; then return; fi
  ensure_apt debootstrap
  # shellcheck disable=SC2016 # apt's own syntax
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' 2>/dev/null | head -n 1)
  # What a killed run left. Its mounts went with it: debootstrap mounts /proc below its target, and undoes that only if it lives.
  rm -rf --one-file-system "$FLYBALL_CACHE"/base.?????? || true
  work=$(mktemp -d "$FLYBALL_CACHE/base.XXXXXX")
  with_progress "images: base" "$FLYBALL_CACHE/images-base.log" \
    unshare --mount -- debootstrap --variant=minbase --include="$base_packages" bookworm "$work/root" ${mirror:+"$mirror"}
  rm -rf "$work"/root/var/{cache/apt,lib/apt/lists}/* "$work/root/dev"/*
  container=$(buildah_do from scratch)
  buildah_do add --quiet "$container" "$work/root" / >/dev/null
  buildah_do config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
  buildah_do commit --quiet --rm --disable-compression "$container" "$ref" >/dev/null
  rm -rf "$work"
}

# image_build NAME REF DOCKERFILE CONTEXT [OPTION...]: options are of buildah
image_build() {
  local arguments=("${@:5}") logfile="$FLYBALL_CACHE/images-$1.log"
  if [[ $(builder) == docker ]]; then
    [[ -z ${FLYBALL_BASE:-} ]] || arguments+=(--build-arg "BASE=$FLYBALL_BASE")
    with_progress "images: $1" "$logfile" docker build "${arguments[@]}" -t "$2" -f "$4/$3" "$4"
    return
  fi
  [[ -n ${FLYBALL_BASE:-} ]] || base_make
  # The host's certificates, for a package index behind a certificate of one's own.
  if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
    arguments+=(-v /etc/ssl/certs:/etc/ssl/certs:ro --build-arg PIP_CERT=/etc/ssl/certs/ca-certificates.crt)
  fi
  buildah_do rm --all >/dev/null # left by a build that failed; callers hold the lock
  local base=${FLYBALL_BASE:-$(base_ref)} tries=0
  # For each RUN buildah starts itself anew from a copy in memory, which it seals. The kernel refuses that now and then, while it moves
  # the copy's pages. What was built until then is a layer, and is not built again.
  until with_progress "images: $1" "$logfile" "${buildah_command[@]}" bud --layers --network host --disable-compression \
    --build-arg "BASE=$base" "${arguments[@]}" -t "$2" -f "$4/$3" "$4"; do
    ((++tries < 3)) && tail -n 5 "$logfile" | grep -q 'sealing memfd copy' || return 1
    log "images: $1: that was the kernel, once more"
  done
}

# image_forget_older NAME REF: earlier builds of NAME, and the layers only they had. Containerd keeps what was imported.
image_forget_older() {
  local older
  [[ $(builder) == buildah ]] || return 0
  older=$(buildah_do images --format '{{.Name}}:{{.Tag}}' | grep "^localhost/flyball/$1:" | grep -vxF "$2" || true)
  # shellcheck disable=SC2086 # references are words
  [[ -z $older ]] || buildah_do rmi $older >/dev/null
}

# image_import NAME REF: piped, never compressed; then containerd's copy of the layers goes, which only a push would need.
image_import() {
  local began=$SECONDS
  log "images: $1: importing"
  if [[ $(builder) == docker ]]; then
    docker save "$2" | box_ctr images import - >/dev/null
  else
    buildah_do push --quiet "$2" "docker-archive:/dev/stdout:$2" | box_ctr images import - >/dev/null
  fi
  # shellcheck disable=SC2046 # digests are words
  box_ctr content rm $(image_layers "$2") >/dev/null
  log "images: $1: imported in $((SECONDS - began)) s"
}

image_layers() { # REF: digests of its layers
  local manifest
  manifest=$(box_ctr images ls "name==$1" | awk 'NR == 2 {print $3}')
  box_ctr content get "$manifest" | jq -r '.layers[].digest' | sort -u
}

image_push() { # NAME REF TARGET
  log "images: $1: pushing to $3"
  if [[ $(builder) == docker ]]; then docker tag "$2" "$3" && docker push --quiet "$3" >/dev/null; else buildah_do push --quiet "$2" "docker://$3"; fi
}
