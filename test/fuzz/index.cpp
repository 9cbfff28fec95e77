// index.cpp - libFuzzer target: the index of a model in shards.
#include "target.h"
BT_FUZZ(index_parser)
