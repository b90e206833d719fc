# Making a release: from a commit to a folder of files.
# shellcheck shell=bash disable=SC2154

release_make() { # VERSION OUT
  local version=$1 out commit
  out=$(realpath -m "$2")
  cd "$FLYBALL_ROOT" || die "no $FLYBALL_ROOT"
  [[ ! -e $out ]] || die "$2 exists; accepted: a folder that does not exist yet"
  [[ $out/ != "$(pwd -P)"/* ]] || die "$2 is inside the checkout; accepted: a folder outside of it"
  [[ -z ${FLYBALL_BASE:-} || $FLYBALL_BASE =~ @sha256:[0-9a-f]{64}$ ]] ||
    die "FLYBALL_BASE is '$FLYBALL_BASE', which may be another image tomorrow; accepted: NAME@sha256:… with 64 hex digits"
  release_tool check "$version" "$FLYBALL_ROOT" || die "VERSION is not accepted"
  [[ -z $(git status --porcelain) ]] || die "the tree has changes that no commit has; commit them, or put them aside: git status"
  commit=$(git rev-parse HEAD)
  epoch=$(git log -1 --format=%ct "$commit")
  mkdir -p "$(dirname "$out")"
  work=$(mktemp -d "$(dirname "$out")/.release.XXXXXX")
  trap release_leave EXIT
  source=$work/source
  files=$work/files
  mkdir "$source" "$files"
  # What is built is what the commit has, with the modes that git knows.
  git -c tar.umask=0022 archive "$commit" | tar -xpf - -C "$source"

  log "release $version of ${commit:0:12}"
  ensure_apt buildah jq
  release_wheels
  release_images "$version" "$commit"
  release_sboms "$version"
  release_chart "$version"
  release_changelog "$version" "$commit" >"$files/CHANGELOG.md"
  release_provenance "$version" "$commit" >"$work/provenance.json"
  mv "$work/provenance.json" "$files/"
  (cd "$files" && LC_ALL=C && sha256sum -- * >"$work/SHA256SUMS")
  mv "$work/SHA256SUMS" "$files/"
  chmod -R u=rwX,go=rX "$files"
  mv -T "$files" "$out"
  log "release $version: $(find "$out" -type f | wc -l) files in $out"
  log "not signed: no key is configured here. Not built: any platform but $(platform)"
}

release_leave() {
  local pids
  pids=$(jobs -p)
  # shellcheck disable=SC2086 # ids are words
  [[ -z $pids ]] || kill -KILL $pids 2>/dev/null || true
  rm -rf "$work"
}

release_tool() { # ARGUMENT...: the Python part, which needs no environment
  PYTHONPATH="$FLYBALL_ROOT/engine/lab/src" PYTHONDONTWRITEBYTECODE=1 python3 -m flyball_lab.tools.release "$@"
}

platform() { echo "linux/$(dpkg --print-architecture)"; }

# packed FOLDER: its content as a tar that is the same wherever and whenever it is made.
packed() {
  tar -C "$1" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -cf - .
}

release_wheels() {
  local python folder
  python=$(build_venv)
  for folder in engine engine/lab operator; do
    log "wheels: $folder"
    (cd "$source/$folder" && SOURCE_DATE_EPOCH=$epoch "$python" -m hatchling build -t wheel -d "$files") >"$work/wheels.log" 2>&1 ||
      { cat "$work/wheels.log" >&2; die "wheels: $folder cannot be built"; }
  done
}

release_images() { # VERSION COMMIT; sets base_name, base_digest, digest_of
  local name ref lock
  declare -gA digest_of
  exec {lock}>"$FLYBALL_CACHE/images.lock"
  lock_wait "$lock" images
  for name in operator plugin; do
    ref="localhost/flyball-release/$name:$1"
    (cd "$source" && stage "$name" "$work/stage-$name")
    image_build "$name" "$ref" "$(dockerfile "$name")" "$work/stage-$name" --no-cache --timestamp "$epoch" \
      --build-arg "SOURCE_DATE_EPOCH=$epoch" --label "org.opencontainers.image.version=$1" \
      --label "org.opencontainers.image.revision=$2" --label org.opencontainers.image.licenses=Apache-2.0
    log "images: $name: archive"
    buildah_do push --quiet "$ref" "oci:$work/oci-$name:$1"
    buildah_do rmi "$ref" >/dev/null
    digest_of[$name]=$(jq -r '.manifests[0].digest' "$work/oci-$name/index.json")
    packed "$work/oci-$name" >"$files/flyball-$name-image-$1.tar"
  done
  base_name=${FLYBALL_BASE:-$(base_ref)}
  base_digest=$(buildah_do inspect --type image --format '{{.FromImageDigest}}' "$base_name")
  base_name=${base_name%@*}
  exec {lock}>&-
}

release_sboms() { # VERSION
  local syft name
  syft=$("$FLYBALL_ROOT/hack/lib/binaries" path syft)
  mkdir "$work/wheels"
  for name in operator plugin; do
    release_sbom "$1" "flyball/$name" "oci-dir:$work/oci-$name" "$files/sbom-$name-image.cdx.json" "${digest_of[$name]}"
  done
  # What the packages need besides each other, as the operator's image has it, and the packages themselves.
  cp "$source/requirements/operator.txt" "$work/wheels/requirements.txt"
  for name in "$files"/*.whl; do python3 -m zipfile -e "$name" "$work/wheels"; done
  name=$(cd "$files" && sha256sum -- *.whl | sha256sum | cut -d ' ' -f 1)
  release_sbom "$1" flyball dir:. "$files/sbom-wheels.cdx.json" "sha256:$name"
}

# release_sbom VERSION NAME SOURCE FILE DIGEST: packages alone, not each of their files. In the folder of the wheels, because a
# bill of materials has a number that comes of the path it is told.
release_sbom() {
  with_progress "sbom: $(basename "$4")" "$work/syft.log" env -C "$work/wheels" "HOME=$work" SYFT_CHECK_FOR_APP_UPDATE=false SYFT_FILE_METADATA_SELECTION=none \
    "$syft" scan --quiet "$3" --source-name "$2" --source-version "$1" -o "cyclonedx-json=$4"
  release_tool settle "$4" --subject "$5" --seconds "$epoch" --scanner "$(module_version github.com/anchore/syft syft)"
}

release_chart() { # VERSION
  local helm chart=$work/chart rendered
  log "chart"
  helm=$("$FLYBALL_ROOT/hack/lib/binaries" path helm)
  mkdir -p "$chart" "$work/packaged"
  cp -r "$source/charts/flyball" "$chart/"
  awk -v operator="${digest_of[operator]}" -v plugin="${digest_of[plugin]}" '
    /^[a-z]/ { part = $1 }
    part == "image:" { sub(/digest: ""/, "digest: " operator) }
    part == "plugin:" { sub(/digest: ""/, "digest: " plugin) }
    { print }' "$source/charts/flyball/values.yaml" >"$chart/flyball/values.yaml"
  "$helm" package --destination "$work/packaged" "$chart/flyball" >/dev/null
  # helm notes when it packs.
  mkdir "$work/unpacked"
  tar -xmf "$work/packaged/flyball-$1.tgz" -C "$work/unpacked"
  tar -C "$work/unpacked" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -cf - flyball |
    gzip -9n >"$files/flyball-$1.tgz"
  rendered=$(KUBECONFIG=/dev/null "$helm" template flyball "$files/flyball-$1.tgz" --set image.registry=registry.example)
  for image in operator plugin; do
    grep -qF "registry.example/flyball/$image@${digest_of[$image]}" <<<"$rendered" || die "the chart does not name $image by digest"
  done
}

release_changelog() { # VERSION COMMIT
  local since of="All commits:"
  since=$(git describe --tags --abbrev=0 "$2^" 2>/dev/null) || since=
  [[ -z $since ]] || of="Commits since $since:"
  printf '# Flyball %s\n\n%s, commit %s. %s\n\n' "$1" "$(date -u -d "@$epoch" +%Y-%m-%d)" "$2" "$of"
  git log --no-merges --format='- %s' "${since:+$since..}$2"
}

release_provenance() { # VERSION COMMIT
  release_tool provenance "$files" --source "$source" --version "$1" --commit "$2" --platform "$(platform)" \
    --image "flyball/operator=${digest_of[operator]}" --image "flyball/plugin=${digest_of[plugin]}" --base "$base_name=$base_digest" \
    --tool "buildah=$(buildah --version | cut -d ' ' -f 3)" \
    --tool "go=$(go env GOVERSION)" \
    --tool "helm=$(module_version helm.sh/helm/v4 helm)" \
    --tool "syft=$(module_version github.com/anchore/syft syft)"
}

module_version() { awk -v module="$1" '$1 == module {print $2; exit}' "$FLYBALL_ROOT/hack/lib/go/$2/go.mod"; }
