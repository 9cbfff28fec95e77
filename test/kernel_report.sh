#!/bin/bash
# The rules of the kernel report on every kernel, as far as they need no nvcc; make kernel-report-check asks ptxas too.
cd "$(dirname "$0")/.." || exit 1
exec build/kernel_report/report --check $(grep -l __global__ kernels/*.h kernels/*/*.h comm/*.h)
