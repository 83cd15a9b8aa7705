# NVIDIA's compiler for GPU code from PyPI, by name, version and hash, unpacked outside the tree. Sourced after plugins.sh
# by the scripts that install it, never run.
# shellcheck shell=bash disable=SC2154

# nvcc-VERSION/bin/nvcc is where cmake/cuda.cmake looks when the machine has none; wheels/ keeps what was fetched, by hash.
cuda_dir=${TESSERA_CUDA:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera/cuda}
cuda_version=13.0.88

# The compiler is five wheels that share one folder: NAME VERSION SHA256-ON-ARM SHA256-ON-X86.
cuda_wheels=(
  "nvidia-cuda-nvcc 13.0.88 c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f 56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"
  "nvidia-nvvm 13.0.88 c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1 c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"
  "nvidia-cuda-crt 13.0.88 ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003 2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"
  "nvidia-cuda-runtime 13.0.96 ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"
  "nvidia-cuda-cccl 13.0.85 6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"
)

# Prints the nvcc that a build would use; 1 where there is none new enough.
find_nvcc() {
  local nvcc have
  for nvcc in "$(command -v nvcc)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$cuda_dir/nvcc-$cuda_version/bin/nvcc"; do
    [[ -x $nvcc ]] || continue
    have=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') || continue
    if at_least "${have:-0}" 13.0; then
      say "$nvcc"
      return 0
    fi
  done
  return 1
}

# Where the machine has an nvcc that serves, nothing is fetched. Two calls at once take turns; what is unpacked appears
# whole or not at all.
install_cuda() {
  local place=$cuda_dir/nvcc-$cuda_version arch column
  ! find_nvcc >/dev/null || return 0
  arch=$(uname -m)
  case $arch in
    aarch64) column=2 ;;
    x86_64) column=3 ;;
    *) say "NVIDIA has no nvcc for $arch: the CUDA lane is left out" >&2 && return 1 ;;
  esac
  mkdir -p "$cuda_dir/wheels" || return 1
  (
    flock 9 || die "cannot lock $cuda_dir/.lock"
    [[ ! -x $place/bin/nvcc ]] || exit 0
    rm -rf "$cuda_dir"/wheels/.fetch.* "$cuda_dir"/.unpack.* # of a call that was interrupted
    local row fields wheels=()
    for row in "${cuda_wheels[@]}"; do
      read -ra fields <<<"$row"
      wheels+=("$cuda_dir/wheels/${fields[column]}.whl")
      fetch_wheel "${fields[0]}==${fields[1]}" "${fields[column]}" "${wheels[-1]}" \
        --platform "manylinux2014_$arch" --platform "manylinux2010_$arch" || exit
    done
    say "Unpacking nvcc $cuda_version in $place"
    unpack_nvcc "$place" "${wheels[@]}"
    rm -f "${wheels[@]}" # a third of what is unpacked, and of no further use
  ) 9>"$cuda_dir/.lock"
}

# unpack_nvcc TO WHEEL...: programs, headers and licences; libraries to link with are not needed for device code.
unpack_nvcc() {
  python3 - "$@" <<'END'
import pathlib, shutil, sys, tempfile, zipfile

place = pathlib.Path(sys.argv[1])
scratch = pathlib.Path(tempfile.mkdtemp(prefix=".unpack.", dir=place.parent))
root = "nvidia/cu13/"
try:
    for wheel in sys.argv[2:]:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                inside = name.removeprefix(root) if name.startswith(root) else None
                if ".dist-info/" in name and "licen" in name.lower() and not name.endswith("/"):
                    inside = "licences/" + name.split("-")[0] + ".txt"
                elif inside is None or not inside.startswith(("bin/", "nvvm/", "include/")) or name.endswith("/"):
                    continue
                target = scratch / "new" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                if "/bin/" in "/" + inside:
                    target.chmod(0o755)
    if place.exists():
        place.rename(scratch / "old")
    (scratch / "new").rename(place)
except (OSError, KeyError, zipfile.BadZipFile) as error:
    sys.exit(f"nvcc could not be unpacked in {place}: {error}")
finally:
    shutil.rmtree(scratch, ignore_errors=True)
END
}
