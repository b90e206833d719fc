# Pushing a release that hack/release made.
# shellcheck shell=bash

release_push() { # DIR REGISTRY
  local dir=$1 registry=${2%/} crane helm version chart image name pushed expected plain=() work
  [[ -e $dir/SHA256SUMS ]] || die "$dir has no SHA256SUMS; accepted: a folder that hack/release made"
  [[ $registry =~ ^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*$ ]] ||
    die "REGISTRY is '$2'; accepted: HOST[:PORT][/PROJECT], without a scheme"
  ensure_apt jq
  log "checking the sums"
  (cd "$dir" && sha256sum --check --quiet SHA256SUMS) || die "$dir is not as hack/release made it; nothing was pushed"
  chart=$(find "$dir" -maxdepth 1 -name 'flyball-*.tgz')
  version=$(basename "$chart" .tgz)
  version=${version#flyball-}
  crane=$("$FLYBALL_ROOT/hack/lib/binaries" path crane)
  helm=$("$FLYBALL_ROOT/hack/lib/binaries" path helm)
  # As crane does for them by itself.
  [[ ! $registry =~ ^(localhost|127\.0\.0\.1)(:|/) ]] || plain=(--plain-http)
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  for image in operator plugin; do
    name=$registry/flyball/$image:$version
    mkdir "$work/$image"
    tar -xf "$dir/flyball-$image-image-$version.tar" -C "$work/$image"
    expected=$(jq -r '.manifests[0].digest' "$work/$image/index.json")
    log "pushing $name"
    pushed=$("$crane" push "$work/$image" "$name") || die "$name cannot be pushed; log in with crane or docker if the registry asks for it"
    [[ $pushed == *"@$expected" ]] || die "the registry has $pushed, the release $expected"
  done
  log "pushing oci://$registry/charts/flyball:$version"
  "$helm" push "${plain[@]}" "$chart" "oci://$registry/charts"
  cat <<NEXT
Install it with:

  helm install flyball oci://$registry/charts/flyball --version $version --set image.registry=$registry \\
    --namespace flyball-system --create-namespace
NEXT
}
