// simt_race.cu - a kernel that reads its neighbour's shared memory, with the barrier in between and, as -DBT_RACE, without.
// test/simt_race.sh builds both under ThreadSanitizer, which must be silent about the one and name both lines of the other.
#include "device.h"

using namespace baretrain;

__global__ void reverse_kernel(float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = float(threadIdx.x);               // this line writes
#if !defined(BT_RACE)
    __syncthreads();
#endif
    y[threadIdx.x] = block_sum(s[blockDim.x - 1 - threadIdx.x]);   // this line reads
}

int main() {
    float y[64] = {};
    Device d;
    launch(d, Grid(3, 64), reverse_kernel, y);
    for (float v : y)
        if (v != 2016) return 1;
}
