"""Print the kernel registry of the installed ONNX Runtime as JSON.

`ortfuse.io.read_kernel_registry` runs this file in a process of its own: the runtime loads the libraries of all its
providers for it, and a GPU build crashes if those of CUDA are missing.
"""

import json
import sys

from onnxruntime.capi import onnxruntime_pybind11_state as runtime

definitions = [
    [
        one.provider,
        one.domain,
        one.op_name,
        list(one.version_range),
        {k: sorted(v) for k, v in one.type_constraints.items()},
    ]
    for one in runtime.get_all_opkernel_def()
]
json.dump(definitions, sys.stdout)
