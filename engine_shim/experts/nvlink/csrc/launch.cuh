// How every kernel is launched: it may be scheduled while the one before it in the stream still ends, and waits for that
// one's memory itself (`begin_after_previous`). So the launches of a step cost next to nothing between its kernels.
#pragma once
#include "params.cuh"

namespace tandem {

// The kernel before this one in the stream has ended, and what it wrote is visible.
__device__ __forceinline__ void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The kernel before has ended; the next one may be scheduled beside this one. Since this comes in this order, everything
// before a step's first kernel has ended when its second one begins, and that one may await flags instead of kernels.
__device__ __forceinline__ void begin_after_previous() {
    await_previous();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

inline int launch(void (*kernel)(Params), int blocks, int threads, void* stream, const Params& p) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace tandem
