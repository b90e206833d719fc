# Images of single static binaries: an archive is a few files of JSON and a tar, so no builder is needed.
# shellcheck shell=bash disable=SC2154

archive_ref() { # PATH of a tool: a reference by content: of this script, and of the module's cache key, which is in its folder's name
  local module
  module=$(basename "$(dirname "$(readlink -f "$1")")")
  echo "localhost/flyball/${1##*/}:$(hash_of "$lib/archive.sh" - <<<"${module##*-}")"
}

# archive_import PATH: that tool, unless containerd has it already.
archive_import() {
  local ref work layer tool=${1##*/}
  ref=$(archive_ref "$1")
  if grep -qxF "$ref" <<<"$imported"; then return; fi
  # Below the cluster's folder: what a kill leaves goes with the cluster.
  work=$(mktemp -d "$dir/archive.XXXXXX")
  mkdir -p "$work/layer/bin" # where the Prometheus operator looks for its own
  cp -L "$1" "$work/layer/bin/$tool"
  tar -C "$work/layer" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  jq -n --arg tool "/bin/$tool" --arg layer "sha256:$layer" --arg architecture "$(dpkg --print-architecture)" \
    '{architecture: $architecture, os: "linux", rootfs: {type: "layers", diff_ids: [$layer]},
      config: {User: "65532:65532", Entrypoint: [$tool], Env: ["PATH=/bin"], WorkingDir: "/"}}' >"$work/config.json"
  jq -n --arg ref "$ref" '[{Config: "config.json", RepoTags: [$ref], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  tar -C "$work" -cf - manifest.json config.json layer.tar | box_ctr images import - >/dev/null
  rm -rf "$work"
}
