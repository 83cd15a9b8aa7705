# PJRT plugins from PyPI, fetched by name, version and hash and unpacked outside the tree. Sourced after lib.sh by the
# scripts that install them, never run.
# shellcheck shell=bash disable=SC2154

# plugins/NAME-VERSION/*.so is where the program and the tests look; wheels/ keeps what was fetched, by hash.
xla_dir=${TESSERA_XLA:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera/xla}
wrong_hash=3 # what install_plugin returns for bytes that are not the ones we know; 1 is everything else

# XLA for this machine's CPU.
install_xla() {
  local arch sha256
  arch=$(uname -m)
  case $arch in
    aarch64) sha256=8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9 ;;
    x86_64) sha256=55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc ;;
    *) say "xla-cpu-pjrt has no plugin for $arch: see docs/xla.md for one of your own" >&2 && return 1 ;;
  esac
  install_plugin xla-cpu-pjrt 0.0.1 "$sha256" xla_plugins/xla_cpu_pjrt "xla_cpu_pjrt.so include/pjrt_c_api.h" \
    --platform "manylinux_2_27_$arch"
}

# Google's TPU compiler, which needs no TPU to compile. It is made for x86-64 alone: other machines run it emulated.
install_tpu() {
  install_plugin libtpu 0.0.51 aeb662a3174a89fd9a94ac64c965a72f43c65436f5546abbcb8968c9d9552631 libtpu libtpu.so \
    --platform manylinux_2_31_x86_64 --implementation cp --python-version 3.12 --abi cp312
}

# Whether the tests find a plugin of XLA's to run.
has_xla() { [[ -n ${TESSERA_PJRT_PLUGIN:-} ]] || compgen -G "$xla_dir/plugins/xla-cpu-pjrt-*/*.so" >/dev/null; }

# Whether they find the TPU compiler.
has_tpu() { compgen -G "$xla_dir/plugins/libtpu-*/libtpu.so" >/dev/null; }

# Prints a Python that has pip, of an environment of its own where there is none.
python_with_pip() {
  local python
  for python in "$peers_dir/bin/python3" python3 "$xla_dir/pip/bin/python3"; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      say "$python"
      return
    fi
  done
  make_environment "$xla_dir/pip" >&2
  say "$xla_dir/pip/bin/python3"
}

# has_hash FILE SHA256
has_hash() { [[ $(sha256sum "$1" | cut -d ' ' -f 1) == "$2" ]]; }

# is_unpacked PLACE SHA256 FILE...
is_unpacked() {
  local place=$1 sha256=$2 file
  shift 2
  for file in sha256 "$@"; do [[ -s $place/$file ]] || return 1; done
  [[ $(<"$place/sha256") == "$sha256" ]]
}

# install_plugin NAME VERSION SHA256 FOLDER "FILE..." PIP_OPTION...: the FILEs of that FOLDER of the wheel go to
# plugins/NAME-VERSION, all of them or none. A second call finds them and does nothing; two at once take turns.
install_plugin() {
  local sha256=$3 place=$xla_dir/plugins/$1-$2 wheel=$xla_dir/wheels/$3.whl files
  read -ra files <<<"$5"
  ! is_unpacked "$place" "$sha256" "${files[@]}" || return 0
  mkdir -p "$xla_dir/plugins" "$xla_dir/wheels" || return 1
  (
    flock 9 || die "cannot lock $xla_dir/.lock"
    ! is_unpacked "$place" "$sha256" "${files[@]}" || exit 0
    rm -rf "$xla_dir"/wheels/.fetch.* # of a call that was interrupted
    fetch_wheel "$1==$2" "$sha256" "$wheel" "${@:6}" || exit
    say "Unpacking $1 $2 in $place"
    unpack_wheel "$wheel" "$sha256" "$place" "$4" "$5"
  ) 9>"$xla_dir/.lock"
}

# fetch_wheel NAME==VERSION SHA256 TO PIP_OPTION...: unless it is there. pip retries a connection, and we what pip gives
# up on.
fetch_wheel() {
  local wanted=$1 sha256=$2 to=$3 python folder attempt file got
  shift 3
  [[ ! -f $to ]] || has_hash "$to" "$sha256" || rm -f "$to" # it was good once: fetched again
  [[ ! -f $to ]] || return 0
  python=$(python_with_pip) || return 1
  folder=$(mktemp -d "${to%/*}/.fetch.XXXXXX") || return 1
  for attempt in 1 2 3; do
    say "Fetching $wanted from PyPI"
    if "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --retries 3 --no-deps \
      --only-binary=:all: "$@" --dest "$folder" "$wanted" 9>&-; then
      break
    elif ((attempt == 3)); then
      rm -rf "$folder"
      say "$wanted could not be fetched from PyPI, in $attempt attempts: is this machine online?" >&2
      return 1
    fi
    sleep $((attempt * 5))
  done
  for file in "$folder"/*.whl; do :; done
  got=$(sha256sum "$file" 2>/dev/null | cut -d ' ' -f 1)
  if [[ $got != "$sha256" ]]; then
    rm -rf "$folder"
    say "$wanted: ${file##*/} has the sha256 ${got:-of nothing}, expected $sha256; it was removed" >&2
    return "$wrong_hash"
  fi
  mv "$file" "$to" && rm -rf "$folder"
}

# unpack_wheel WHEEL SHA256 TO FOLDER "FILE...": the folder appears under its name only when it is complete. What an
# interrupted call left behind goes first.
unpack_wheel() {
  python3 - "$@" <<'END'
import pathlib, shutil, sys, tempfile, zipfile

wheel, sha256, place, folder, names = sys.argv[1:]
place = pathlib.Path(place)
for leftover in place.parent.glob(".unpack.*"):
    shutil.rmtree(leftover, ignore_errors=True)
scratch = pathlib.Path(tempfile.mkdtemp(prefix=".unpack.", dir=place.parent))
try:
    new, old = scratch / "new", scratch / "old"
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if ".dist-info/" in name and "licen" in name.lower()]
        members = {f"{folder}/{name}": name for name in names.split()}
        members |= {name: pathlib.PurePath(name).name for name in licences if not name.endswith("/")}
        for member, name in members.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(new / name, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    (new / "sha256").write_text(sha256 + "\n", encoding="utf-8")
    if place.exists():
        place.rename(old)
    new.rename(place)
except (OSError, KeyError, zipfile.BadZipFile) as error:
    sys.exit(f"{wheel} could not be unpacked in {place}: {error}")
finally:
    shutil.rmtree(scratch, ignore_errors=True)
END
}
