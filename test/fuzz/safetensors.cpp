// safetensors.cpp - libFuzzer target: safetensors files.
#include "target.h"
BT_FUZZ(safetensors_parser)
