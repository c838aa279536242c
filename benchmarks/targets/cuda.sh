#!/usr/bin/env bash
# Tries ortfuse on a machine with a GPU: kernels, operators, golden models in float32 and float16, latency of models of real size.
#
#   benchmarks/targets/cuda.sh OUT [ARGUMENT]...
#
# OUT is the folder of results; arguments are those of `python -m benchmarks.targets.cuda.device`. A Python with torch,
# transformers, onnx, onnx-ir and onnxscript is `python3`, and has onnxruntime-gpu, or SITE names the folder that it is in.
# CUDA's libraries are those of the packages beside torch, unless the system has them.
set -u
out=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export PYTHONPATH="$root${SITE:+:$SITE}${PYTHONPATH:+:$PYTHONPATH}"
libraries=$(python3 - <<'P'
import glob, os, site, sysconfig
folders = {sysconfig.get_paths()["purelib"], *site.getsitepackages()}
found = [path for folder in folders for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib"))]
print(":".join(sorted(found)))
P
)
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-/tmp/ortfuse-cache}"
mkdir -p "$out" "$XDG_CACHE_HOME"
exec python3 -m benchmarks.targets.cuda.device "$out" "$@"
