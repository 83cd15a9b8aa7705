#!/usr/bin/env bash
# The scripts' manners: --help, bad options, and package work only when a package is missing. The package tools are
# replaced by fakes, so nothing is installed here.
# shellcheck disable=SC2317
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
num_failed=0

check() {
  local what=$1
  shift
  if "$@"; then return; fi
  echo "failed: $what" >&2
  num_failed=$((num_failed + 1))
}

# expect STATUS COMMAND...: runs it, keeps its output, compares the exit status.
expect() {
  local want=$1 status=0
  shift
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
  [[ $status == "$want" ]] && return
  echo "$*: exit $status, expected $want" >&2
  cat "$scratch/out" "$scratch/err" >&2
  return 1
}
says() { grep -qF -- "$2" "$scratch/$1"; }

for script in setup run test bench format fuzz requirements; do
  check "$script is executable" test -x "$root/script/$script"
  check "$script --help" expect 0 "$root/script/$script" --help
  check "$script --help says how to call it" says out "Usage: script/$script"
  [[ $script == run ]] && continue # passes its options on to the program
  check "$script with a bad option" expect 2 "$root/script/$script" --nonsense
  check "$script names the bad option" says err "--nonsense"
done
check "bench --help says what --peers installs" grep -q "onnxruntime==" <(cd "$root" && script/bench --help)
check "bench without a name" expect 2 "$root/script/bench"
check "bench with an unknown name" expect 2 "$root/script/bench" nonsense
check "bench lists the names" says err "there are:"
check "fuzz with an unknown target" expect 2 "$root/script/fuzz" nonsense
check "fuzz lists the targets" says err "there are: contract_toml"
check "fuzz with a bad count" expect 2 "$root/script/fuzz" --runs many
check "fuzz says what a count is" says err "--runs takes a number"

# A proof that cannot be had here is no proof.
nowhere=(env "TESSERA_XLA=$scratch/nowhere" "TESSERA_PEERS=$scratch/nowhere")
for proof in same-program compiled other-chips cost; do
  check "tpu-proof $proof without the compiler" expect 77 "${nowhere[@]}" "$root/script/tpu-proof" "$proof"
  check "tpu-proof $proof says what is missing" says out "skipped: the TPU compiler is not installed: script/setup --tpu"
done
check "tpu-proof with an unknown proof" expect 2 "$root/script/tpu-proof" nonsense
mkdir -p "$scratch/compiler/plugins/libtpu-1" && : >"$scratch/compiler/plugins/libtpu-1/libtpu.so"
for proof in same-program cost; do
  check "tpu-proof $proof without JAX" expect 77 "${nowhere[@]}" "TESSERA_XLA=$scratch/compiler" "$root/script/tpu-proof" "$proof"
  check "tpu-proof $proof says so" says out "skipped: JAX is not installed: script/setup --peers"
done

# Fakes: a package database of names in a file, an apt-get that writes down its calls and "installs" into that file.
chmod 755 "$scratch"
mkdir "$scratch/bin" "$scratch/tree" "$scratch/empty"
cp -r "$root/script" "$scratch/tree/script"
cat >"$scratch/bin/dpkg-query" <<END
#!/bin/sh
for package; do :; done
if grep -qxF -- "\$package" "$scratch/installed"; then echo "install ok installed"; else exit 1; fi
END
cat >"$scratch/bin/apt-get" <<END
#!/bin/sh
echo "\$*" >>"$scratch/calls"
for word; do echo "\$word" >>"$scratch/installed"; done
END
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/no_sudo"
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n' >"$scratch/bin/yes_sudo"
chmod +x "$scratch"/bin/*
: >"$scratch/calls"
chmod 666 "$scratch/calls"

core=$(bash -c "source '$root/script/lib.sh' && printf '%s\n' \"\${core_packages[@]}\"")
with_fakes=(env "PATH=$scratch/bin:$PATH")

printf '%s\n' "$core" >"$scratch/installed"
check "setup with nothing missing" expect 0 "${with_fakes[@]}" "$scratch/tree/script/setup"
check "setup with nothing missing leaves apt-get alone" test ! -s "$scratch/calls"

printf '%s\n' "$core" | grep -vxF ninja-build >"$scratch/installed"
as_nobody=()
((EUID != 0)) || as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
ln -s no_sudo "$scratch/bin/sudo"
check "setup without root" expect 1 "${as_nobody[@]}" "${with_fakes[@]}" "$scratch/tree/script/setup"
check "setup without root prints the line" says err "apt-get install -y --no-install-recommends ninja-build"
check "setup without root leaves apt-get alone" test ! -s "$scratch/calls"
check "run without root" expect 1 "${as_nobody[@]}" "${with_fakes[@]}" "$scratch/tree/script/run"
check "run without root prints the line" says err "apt-get install -y --no-install-recommends ninja-build"

ln -sf yes_sudo "$scratch/bin/sudo"
chmod 666 "$scratch/installed"
check "setup through sudo" expect 0 "${as_nobody[@]}" "${with_fakes[@]}" "$scratch/tree/script/setup"
check "apt-get updates, then installs" test "$(wc -l <"$scratch/calls")" = 2
check "apt-get installs what is missing and no more" grep -qE 'install -y --no-install-recommends ninja-build$' "$scratch/calls"
check "setup a second time" expect 0 "${as_nobody[@]}" "${with_fakes[@]}" "$scratch/tree/script/setup"
check "setup a second time leaves apt-get alone" test "$(wc -l <"$scratch/calls")" = 2

# Plugins: the real pip, which finds a small wheel of the right name in a folder of ours and asks nobody else. The Python
# in front of it counts its calls.
wheel=$scratch/links/libtpu-0.0.51-cp312-cp312-manylinux_2_31_x86_64.whl
make_wheel() {
  mkdir -p "$scratch/links"
  python3 - "$wheel" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("libtpu/libtpu.so", "the plugin")
    wheel.writestr("libtpu/sdk.so", "no plugin")
    wheel.writestr("libtpu-0.0.51.dist-info/METADATA", "Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.51\n")
    wheel.writestr("libtpu-0.0.51.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-manylinux_2_31_x86_64\n")
    wheel.writestr("libtpu-0.0.51.dist-info/RECORD", "")
    wheel.writestr("libtpu-0.0.51.dist-info/licenses/LICENSE", "its terms")
END
}
cat >"$scratch/bin/python3" <<END
#!/bin/sh
case "\$*" in
  "-m pip --version") [ ! -e "$scratch/no_pip" ] || exit 1 ;;
  "-m pip download "*) echo "\$*" >>"$scratch/pip_calls" ;;
esac
exec "$(python3 -c 'import sys; print(sys.executable)')" "\$@"
END
printf '#!/bin/sh\n' >"$scratch/bin/sleep"
chmod +x "$scratch/bin/python3" "$scratch/bin/sleep"
places=("TESSERA_XLA=$scratch/xla" "TESSERA_PEERS=$scratch/none" PIP_NO_INDEX=1 "PIP_FIND_LINKS=$scratch/links" PIP_CONFIG_FILE=/dev/null)
setup_tpu=("${with_fakes[@]}" "${places[@]}" "$scratch/tree/script/setup" --tpu)
plugin=$scratch/xla/plugins/libtpu-0.0.51
num_files() { find "$scratch/xla/wheels" "$scratch/xla/plugins" -type f | wc -l; }
pip_calls() { wc -l <"$scratch/pip_calls"; }
if ! python3 -c 'import ensurepip' 2>/dev/null; then
  echo "skipped: fetching plugins needs python3-venv, which script/setup --xla would install"
else
  : >"$scratch/pip_calls"
  printf '%s\n' "$core" >"$scratch/installed"
  python3 -m pip --version >/dev/null 2>&1 || "${with_fakes[@]}" python3 -m venv "$scratch/none"
  check "setup --tpu offline" expect 1 "${setup_tpu[@]}"
  check "setup --tpu offline says so" says err "libtpu==0.0.51 could not be fetched from PyPI, in 3 attempts"
  check "setup --tpu offline tried again" test "$(pip_calls)" = 3
  check "setup --tpu offline leaves nothing" test "$(num_files)" = 0

  make_wheel
  hash=$(sha256sum "$wheel" | cut -d ' ' -f 1)
  check "setup --tpu with other bytes" expect 3 "${setup_tpu[@]}"
  check "setup --tpu with other bytes names both hashes" grep -qE "$hash, expected aeb662a3" "$scratch/err"
  check "setup --tpu with other bytes leaves nothing" test "$(num_files)" = 0

  sed -i "s/aeb662a3[0-9a-f]*/$hash/" "$scratch/tree/script/plugins.sh"
  : >"$scratch/pip_calls"
  check "setup --tpu" expect 0 "${setup_tpu[@]}"
  check "setup --tpu unpacks the plugin" grep -qx "the plugin" "$plugin/libtpu.so"
  check "setup --tpu keeps the licence" grep -qx "its terms" "$plugin/LICENSE"
  check "setup --tpu unpacks no more than that" test "$(cd "$plugin" && LC_ALL=C && echo *)" = "LICENSE libtpu.so sha256"
  check "setup --tpu a second time" expect 0 "${setup_tpu[@]}"
  rm "$plugin/libtpu.so"
  check "setup --tpu with the plugin gone" expect 0 "${setup_tpu[@]}"
  check "setup --tpu puts the plugin back" grep -qx "the plugin" "$plugin/libtpu.so"
  check "setup --tpu fetched once" test "$(pip_calls)" = 1
  rm -r "$plugin"
  echo damage >>"$scratch/xla/wheels/$hash.whl"
  mkdir "$scratch/xla/plugins/.unpack.left" "$scratch/xla/wheels/.fetch.left"
  check "setup --tpu with a damaged wheel" expect 0 "${setup_tpu[@]}"
  check "setup --tpu fetched it again" test "$(pip_calls)" = 2
  check "setup --tpu leaves nothing behind" test "$(num_files)" = 4
  check "setup --tpu clears what was left" test -z "$(find "$scratch/xla" -name '.*.left')"

  touch "$scratch/no_pip"
  rm -rf "$scratch/xla" "$scratch/none"
  check "setup --tpu without pip" expect 0 "${setup_tpu[@]}"
  check "setup --tpu made itself a pip" test -x "$scratch/xla/pip/bin/pip3"
  check "setup --tpu without pip unpacks the plugin" grep -qx "the plugin" "$plugin/libtpu.so"
  rm -f "$scratch/no_pip"

  # nvcc: nothing is fetched where the machine has one, and an old one does not count.
  fake_nvcc() { printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$1" "$1" >"$scratch/bin/nvcc" && chmod +x "$scratch/bin/nvcc"; }
  setup_cuda=("${with_fakes[@]}" "${places[@]}" "TESSERA_CUDA=$scratch/cuda" CUDA_HOME=/nowhere "$scratch/tree/script/setup" --cuda)
  : >"$scratch/pip_calls"
  fake_nvcc 13.1
  check "setup --cuda with an nvcc" expect 0 "${setup_cuda[@]}"
  check "setup --cuda with an nvcc fetches nothing" test "$(pip_calls)" = 0
  fake_nvcc 12.4
  check "setup --cuda offline" expect 1 "${setup_cuda[@]}"
  check "setup --cuda offline says so" says err "nvidia-cuda-nvcc==13.0.88 could not be fetched from PyPI, in 3 attempts"
  check "setup --cuda offline leaves nothing" test -z "$(find "$scratch/cuda" -type f ! -name .lock)"
  # The five wheels, made here: their files meet in one folder.
  python3 - "$scratch/links" "$scratch/tree/script/cuda.sh" "$(uname -m)" <<'END'
import hashlib, pathlib, re, sys, zipfile
links, script, arch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
text = script.read_text()
for name, version in re.findall(r'^  "(nvidia-\S+) (\S+) ', text, re.M):
    under = name.replace("-", "_")
    path = links / f"{under}-{version}-py3-none-manylinux2014_{arch}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"nvidia/cu13/include/{under}.h", "a header")
        wheel.writestr(f"nvidia/cu13/lib/{under}.a", "not wanted")
        if name.endswith("nvcc"): wheel.writestr("nvidia/cu13/bin/nvcc", "#!/bin/sh\necho release 13.0, V\n")
        info = f"{under}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux2014_{arch}\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(f"{info}/licenses/License.txt", "its terms")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    text = re.sub(rf'("{name} \S+) \S+ [0-9a-f]+"', rf'\1 {digest} {digest}"', text)
script.write_text(text)
END
  check "setup --cuda" expect 0 "${setup_cuda[@]}"
  nvcc_place=$scratch/cuda/nvcc-13.0.88
  check "setup --cuda unpacks a compiler that runs" expect 0 "$nvcc_place/bin/nvcc"
  check "setup --cuda unpacks headers of every wheel" test "$(find "$nvcc_place/include" -name '*.h' | wc -l)" = 5
  check "setup --cuda keeps the licences" test "$(find "$nvcc_place/licences" -type f | wc -l)" = 5
  check "setup --cuda unpacks no libraries" test ! -e "$nvcc_place/lib"
  calls=$(pip_calls)
  check "setup --cuda a second time" expect 0 "${setup_cuda[@]}"
  check "setup --cuda a second time fetches nothing" test "$(pip_calls)" = "$calls"
fi

# What script/test says about a plugin that is not there.
has_xla() { env -u TESSERA_PJRT_PLUGIN "$@" bash -c "source '$root/script/lib.sh' && source '$root/script/plugins.sh' && has_xla"; }
check "no plugin" expect 1 has_xla "TESSERA_XLA=$scratch/nowhere"
mkdir -p "$scratch/somewhere/plugins/xla-cpu-pjrt-9" && touch "$scratch/somewhere/plugins/xla-cpu-pjrt-9/a.so"
check "a plugin" expect 0 has_xla "TESSERA_XLA=$scratch/somewhere"
check "a plugin of one's own" expect 0 has_xla "TESSERA_XLA=$scratch/nowhere" TESSERA_PJRT_PLUGIN=/a.so

# Every name in the list is known, wherever it stands: with nothing to build, the build is what fails.
mkdir "$scratch/tree/bench"
for name in first second third; do echo "int main() {}" >"$scratch/tree/bench/$name.cc"; done
for name in first second third; do
  check "bench $name" expect 1 "${with_fakes[@]}" "$scratch/tree/script/bench" "$name"
done

# A skipped test is listed with its reason.
cat >"$scratch/LastTest.log" <<'END'
7/9 Testing: Lane.NeedsPlugin_Runs
7/9 Test: Lane.NeedsPlugin_Runs
lane_test.cc:12: Skipped
no plugin on this machine
[  SKIPPED ] Lane.NeedsPlugin_Runs (0 ms)
END
skips=$(bash -c "source '$root/script/lib.sh' && show_skips '$scratch/LastTest.log'")
check "a skip's reason" test "$skips" = "skipped: Lane.NeedsPlugin_Runs: no plugin on this machine"

((num_failed == 0)) && echo "the scripts behave"
exit $((num_failed > 0))
