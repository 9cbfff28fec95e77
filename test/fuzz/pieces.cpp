// pieces.cpp - libFuzzer target: tensors that lie in pieces, in two safetensors files.
#include "target.h"
BT_FUZZ(pieces_parser)
