// managed.cpp - cudaMalloc for suites whose host code looks at device memory: linked with --wrap=cudaMalloc.
// Memory of the device and of the host at once; where a card has none of it, a test that looks dies alone.
#include <cuda_runtime_api.h>

extern "C" cudaError_t __wrap_cudaMalloc(void** p, size_t bytes) { return cudaMallocManaged(p, bytes, cudaMemAttachGlobal); }
