// shard.cpp - libFuzzer target: token shards.
#include "target.h"
BT_FUZZ(shard_parser)
