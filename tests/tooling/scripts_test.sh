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
for part in xla tpu; do
  check "setup --$part" expect 2 "$root/script/setup" "--$part"
  check "setup --$part says why" says err "not in this version"
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
