#!/usr/bin/env bash
# Checks the cuDNN backend on a machine with an NVIDIA GPU: one command, offline, all results in OUT.
#
#   tools/gpu_check.sh --wheels build/wheels   where PyPI is, with PYTHON 3.12 or later: what that machine may
#                                              lack, 12 MB; again after every change in C++
#   tools/gpu_check.sh [OUT]                   there; OUT is build/gpu_check/out unless given
#
# That machine needs Python 3.12 or later with its headers, g++, jax with its CUDA plugin, cuDNN's wheel,
# scikit-build-core, nanobind, cmake, ninja, pytest and hypothesis, and for the comparison PyTorch. Without a
# compiler or the headers of Python, the carried wheel of this package takes over.
#
# The steps, and the seconds after which each is ended (470 s in all; 5 minutes are likelier):
#   build     120  the package, with the image's own Python, into build/gpu_check/site
#   config     20  python -m jax_cudnn_conv
#   device     20  the true description of the GPU, and where it differs from the one planned for -> device.json
#   values     80  every problem on every function, in f32, f16, bf16 and f64: four processes at once
#   behaviour 130  the other tests: options, determinism, TF32, trials, threads, memory, command buffers
#   benchmark 100  against XLA and PyTorch -> benchmark.json
# All tests -> tests.xml, all output -> log.txt, and how each step ended -> summary.json, after every step.
# A step that fails stops none of the others. Exits with 1 if any did.
#
# Environment: PYTHON; WHEELS, the folder of the carried wheels; STEPS, those to run (the build is kept);
# GPU_CHECK_DRY_RUN=1 runs it all on cuDNN's test double, without a GPU and without the limits above.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

PYTHON=$(command -v "${PYTHON:-python3}") || exit
PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
WHEELS=$(realpath -m "${WHEELS:-build/wheels}")

if [ "${1:-}" = --wheels ]; then
  # cudnn-frontend 5.7 MB, the package itself 0.5 MB; and in place of a toolkit that lacks its headers:
  # cuda-runtime 2.2 MB, cuda-crt 0.1 MB, cuda-cccl 3.1 MB.
  folder=${2:?--wheels DIR}
  "$PYTHON" -m pip download -q --no-deps --only-binary=:all: -d "$folder" nvidia-cudnn-frontend==1.28.0 \
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*' || exit
  "$PYTHON" -m pip wheel -q --no-deps -w "$folder" -Ccmake.define.JAX_CUDNN_CONV_ONEDNN=OFF .
  status=$?
  du -ah "$folder"
  exit "$status"
fi

OUT=$(realpath -m "${1:-build/gpu_check/out}")
WORK=$PWD/build/gpu_check
STEPS=${STEPS:-build config device values behaviour benchmark}
if [ -n "${GPU_CHECK_DRY_RUN:-}" ]; then
  mode=--cudnn bench=--dry-run slower=8
  export JAX_PLATFORMS=cpu
else
  mode=--gpu bench="--quick --max-time 80" slower=1
fi
export OUT WORK
export PYTHONPATH=$WORK/site PYTHONUNBUFFERED=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_CUDNN_CONV_CACHE_DIR=$WORK/cache
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
mkdir -p "$OUT" "$WORK"
rm -rf "$WORK"/*.xml "$WORK"/*.log "$WORK/steps" "$WORK/cache" "$OUT/log.txt"
touch "$WORK/steps"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$WORK/gpu" 2>&1 ||
  echo none >"$WORK/gpu"

# SIGINT, so that pytest still writes what it has; a background job would ignore it without `env`.
run() { # NAME SECONDS COMMAND...
  local name=$1 limit=$(($2 * slower)) start=$SECONDS status
  shift 2
  timeout --signal=INT --kill-after=10 "$limit" env --default-signal=INT "$@" >"$WORK/$name.log" 2>&1
  status=$?
  echo "$name $status $((SECONDS - start)) $limit" >>"$WORK/steps"
  return "$status"
}

report() { # NAME LINES: its log, and so many of its last lines here
  { echo "=== $1" && cat "$WORK/$1.log"; } >>"$OUT/log.txt"
  echo "=== $(grep "^$1 " "$WORK/steps" | awk '{ print $1 ": exit status " $2 ", " $3 " s" }')"
  tail -n "$2" "$WORK/$1.log"
  "$PYTHON" -c "$SUMMARY"
}

wanted() { [[ " $STEPS " == *" $1 "* ]]; }

first_with() { # FILE FOLDER...: the first folder that holds the file
  local file=$1 folder
  shift
  for folder; do
    if [ -e "$folder/$file" ]; then
      echo "$folder"
      return
    fi
  done
}

installed() { "$PYTHON" -c "import $1; print($1.__path__[0])" 2>/dev/null; }

SUMMARY='
import datetime, json, os, pathlib, platform, xml.etree.ElementTree as xml
from importlib import metadata

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

out, work = pathlib.Path(os.environ["OUT"]), pathlib.Path(os.environ["WORK"])
steps = [line.split() for line in (work / "steps").read_text().splitlines()]
suites = xml.Element("testsuites")
for path in sorted(work.glob("*.xml")):
    suites.extend(xml.parse(path).getroot().iter("testsuite"))
xml.ElementTree(suites).write(out / "tests.xml")
cases = list(suites.iter("testcase"))
bad = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
skipped = sum(c.find("skipped") is not None for c in cases)
packages = "jax jaxlib jax-cuda13-plugin nvidia-cudnn-cu13 nvidia-cublas numpy torch jax-cudnn-conv".split()
summary = {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "dry run": bool(os.environ.get("GPU_CHECK_DRY_RUN")),
    "gpu, driver, memory": (work / "gpu").read_text().strip(),
    "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    "steps": {n: dict(zip(("exit status", "seconds", "limit"), map(int, rest))) for n, *rest in steps},
    "tests": {"passed": len(cases) - len(bad) - skipped, "failed": len(bad), "skipped": skipped},
    "failed tests": bad,
}
(out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
'

DEVICE='
import json, os, sys
if os.environ.get("GPU_CHECK_DRY_RUN"):
    import gpu_on_cpu
    gpu_on_cpu.install()
from jax_cudnn_conv import _devices, _targets
gpu = _devices.live(_targets.cudnn()) or sys.exit("no GPU")
true, planned = json.loads(gpu.description), _devices.DESCRIBED.get(f"sm_{gpu.capability}", {})
with open(os.path.join(os.environ["OUT"], "device.json"), "w") as file:
    file.write(json.dumps(true, indent=1) + "\n")
for key in sorted(true | planned):
    if true.get(key) != planned.get(key):
        print(f"{key}: {true.get(key)!r}, planned for: {planned.get(key)!r}")
'

if wanted build; then
  rm -rf "$WORK/site" "$WORK/headers"
  for wheel in "$WHEELS"/nvidia_*.whl; do
    [ -e "$wheel" ] && "$PYTHON" -m zipfile -e "$wheel" "$WORK/headers"
  done
  carried=$WORK/headers/nvidia/cu13/include
  defines=()
  define() { [ -n "$2" ] && defines+=("-Ccmake.define.$1=$2"); }
  define CUDA_INCLUDE_DIR "$(first_with crt/host_defines.h "${CUDA_HOME:-/usr/local/cuda}/include" \
    /usr/local/cuda/include "$(installed nvidia.cu13)/include" "$carried")"
  define CUDNN_INCLUDE_DIR "$(first_with cudnn.h "$(installed nvidia.cudnn)/include" /usr/include)"
  define CUDNN_FRONTEND_INCLUDE_DIR "$(first_with cudnn_frontend.h "$WORK/headers/include")"
  "$PYTHON" -m pip show -qq onednn-devel-cpu-tbb 2>/dev/null || define JAX_CUDNN_CONV_ONEDNN OFF
  pip=("$PYTHON" -m pip install --no-deps --no-index --no-build-isolation --target "$WORK/site")
  if ! run build 120 "${pip[@]}" -v "${defines[@]}" .; then
    report build 15
    run carried 30 "${pip[@]}" "$WHEELS"/jax_cudnn_conv-*-abi3-*.whl && report carried 1
  else
    report build 1
  fi
fi
cd tests || exit # not where the package's sources are, which have no compiled modules
if wanted config; then
  run config 20 "$PYTHON" -m jax_cudnn_conv
  report config 20
fi
if wanted device; then
  run device 20 "$PYTHON" -c "$DEVICE"
  report device 30
fi
pytest=("$PYTHON" -m pytest test_gpu.py "$mode" -v --tb=short -p no:cacheprovider -W default
  -o faulthandler_timeout=60 -o junit_family=xunit1)
if wanted values; then
  for dtype in f32 f16 bf16 f64; do
    run "$dtype" 80 "${pytest[@]}" -k "test_values[$dtype-" --junit-xml "$WORK/$dtype.xml" &
  done
  wait
  for dtype in f32 f16 bf16 f64; do
    report "$dtype" 3
  done
fi
if wanted behaviour; then
  run behaviour 130 "${pytest[@]}" -k "not test_values" --junit-xml "$WORK/others.xml" --durations=15
  report behaviour 40
fi
if wanted benchmark; then
  # shellcheck disable=SC2086  # several options
  run benchmark 100 "$PYTHON" ../benchmarks/bench_gpu.py $bench --json "$OUT/benchmark.json"
  report benchmark 100
fi
cat "$OUT/summary.json"
! awk '{ print $2 }' "$WORK/steps" | grep -qv '^0$'
