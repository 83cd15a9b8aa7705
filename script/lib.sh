# Shared by the scripts in this folder: where the tree is, which packages it needs, how to build a preset.
# Sourced, never run.
# shellcheck shell=bash disable=SC2034

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")

# What the core needs: a compiler, a build tool, libraries (fmt, oneTBB and simdjson to link with, the others headers only),
# GoogleTest's source, Python for the checks.
core_packages=(g++ cmake ninja-build libexpected-dev libxxhash-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libtomlplusplus-dev libhwy-dev libtbb-dev libsimdjson-dev googletest python3)

# What `script/test --all` needs beside the core. clang is the distribution's default (the oldest we support on Debian
# 12); the formatter and the naming check are pinned, because other versions judge the same file differently.
clang_format=clang-format-14
clang_tidy=clang-tidy-16
dev_packages=(clang libclang-rt-dev "$clang_format" "$clang_tidy" qemu-user-static pkg-config dpkg-dev file)
# What `pip install .` needs beside the core: Python's headers, and an environment to install into, because the
# distribution's own Python takes no packages from pip.
wheel_packages=(python3-dev python3-venv)
# A browser for the tests of what `tessera view` writes. Debian has it; where apt does not, those tests are skipped.
browser_packages=(chromium)
other_arch=  # the one of the two supported architectures that this machine is not
case $(uname -m) in
  x86_64) other_arch=aarch64 dev_packages+=(g++-aarch64-linux-gnu) ;;
  aarch64) other_arch=x86_64 dev_packages+=(g++-x86-64-linux-gnu) ;;
esac

# The libraries we compare with, in a Python environment of their own outside the tree. torch is apart: with what it
# brings along it is several gigabytes.
peers_dir=${TESSERA_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera/peers}
peer_packages=(jax==0.10.2 jaxlib==0.10.2 tokamax==0.0.12)
torch_packages=(torch==2.15.0 numpy)
onnx_packages=(onnxruntime==1.31.1 onnx==1.23.2 numpy)

# What a script exits with when what it needs is not installed here, after it has said so; ctest's tests too.
skipped_status=77

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
# A mistake in how the script was called.
bad_usage() {
  printf '%s: %s; see script/%s --help\n' "$(basename "$0")" "$*" "$(basename "$0")" >&2
  exit 2
}

# Prints the named packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == "install ok installed" ]] || say "$package"
  done
}

# Installs what is missing of the named packages; does nothing at all when nothing is.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "This system has no dpkg: please see to these yourself: $*" >&2
    return 0
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    # A sudo that would ask for a password is fine with somebody at the terminal to answer it.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      as_root=(sudo)
    else
      say "Packages are missing and this user may not install them. As root:" >&2
      say "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  say "Installing: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  "${apt[@]}" update || die "apt-get update failed; is this machine online?"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null || die "apt-get install ${missing[*]} failed"
}

# make_environment FOLDER: a Python environment with pip there, unless there is one. The distribution's own Python comes
# without pip.
make_environment() {
  [[ ! -x $1/bin/pip3 ]] || return 0
  python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
  mkdir -p "$(dirname "$1")"
  python3 -m venv "$1" || die "python3 -m venv $1 failed"
}

# install_peers PACKAGE...: into the peers' environment, which is made when it is not there.
install_peers() {
  local python=$peers_dir/bin/python3
  make_environment "$peers_dir"
  "$python" - "$@" 2>/dev/null <<'END' && return 0
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    have = importlib.metadata.version(name)
    if version and have.split("+")[0] != version: sys.exit(1)
END
  say "Installing in $peers_dir: $*"
  "$python" -m pip install --quiet --disable-pip-version-check --retries 3 "$@"
}

# at_least HAVE WANT: compares version numbers.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# The core's packages, and tools new enough.
ensure_core() {
  install_packages "${core_packages[@]}"
  local have
  have=$(cmake --version | sed -n '1s/.* //p')
  at_least "$have" 3.25 || die "CMake 3.25 or newer is needed, this is $have"
  if [[ -z ${CXX:-} ]]; then
    have=$(g++ -dumpfullversion)
    at_least "$have" 12 || die "GCC 12 or newer is needed, this is $have"
  fi
}

# Passes ninja's output on, line by line as it comes: progress on one line for a terminal, nothing at all when there was
# nothing to do.
show_build() {
  local terminal=0 open=0 line
  [[ -t 1 ]] && terminal=1
  while IFS= read -r line; do
    case $line in
      *"Re-checking globbed directories"* | "ninja: no work to do."* | "ninja: Entering directory"*) continue ;;
    esac
    if ((terminal)) && [[ $line =~ ^\[[0-9]+/[0-9]+\] ]]; then
      printf '\r\033[K%s' "${line:0:110}"
      open=1
      continue
    fi
    ((!open)) || printf '\n'
    open=0
    printf '%s\n' "$line"
  done
  ((!open)) || printf '\n'
}

# configure_preset PRESET: configures build/PRESET once, and again when the presets change.
configure_preset() {
  local folder=$root/build/$1
  [[ -f $folder/build.ninja && ! $root/CMakePresets.json -nt $folder/build.ninja ]] && return
  say "Configuring build/$1"
  mkdir -p "$folder"
  if ! (cd "$root" && cmake --preset "$1") >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    rm -f "$folder/CMakeCache.txt"
    return 1
  fi
}

# build_preset PRESET [TARGET...]: ninja sees what changed, also among the build's own files.
build_preset() {
  local preset=$1
  shift
  configure_preset "$preset"
  ninja -C "$root/build/$preset" -j "$(nproc)" "$@" 2>&1 | show_build
}

# run_tests PRESET [CTEST OPTION...]: runs ctest, says why each skipped test was skipped, and ends with ctest's summary
# line. Without options it runs everything, and leaves a fresh set of results for script/requirements.
run_tests() {
  local preset=$1
  shift
  local folder=$root/build/$preset status=0
  if ((!$#)); then rm -rf "$folder/test_results" "$folder/Testing/Temporary/LastTestsFailed.log"; fi
  ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure --no-tests=error "$@" 2>&1 |
    tee "$folder/ctest.log" | show_tests || status=$?
  show_skips "$folder/Testing/Temporary/LastTest.log"
  grep -E '^[0-9]+% tests passed' "$folder/ctest.log" || say "ctest gave no summary"
  if ((!$#)); then
    mkdir -p "$folder/test_results" && touch "$folder/test_results/complete"
    # A test that crashed leaves no results of its own.
    cp "$folder/Testing/Temporary/LastTestsFailed.log" "$folder/test_results/failed" 2>/dev/null || true
  fi
  return "$status"
}

# Leaves out the lines that say nothing new: starts, and the summary, which comes last.
show_tests() { grep --line-buffered -vE '^ +Start +[0-9]+:|^[0-9]+% tests passed|^Internal ctest changing|^$' || true; }

# Each skipped GoogleTest prints its reason after the line of its place in the source.
show_skips() {
  [[ -f $1 ]] || return 0
  awk '
    /^[0-9]+\/[0-9]+ Test(ing)?: / { test = $NF; reason = "" }
    /: Skipped$/ { if ((getline line) > 0) reason = line }
    /^skipped: / && test != "" { print "skipped: " test ": " substr($0, 10); test = "" }
    /^\[  SKIPPED \] .*\(/ && test != "" { print "skipped: " test ": " (reason != "" ? reason : "no reason given"); test = "" }
  ' "$1"
}
