// log.cpp - libFuzzer target: log.jsonl and samples.jsonl of a run that is resumed.
#include "target.h"
BT_FUZZ(log_parser)
