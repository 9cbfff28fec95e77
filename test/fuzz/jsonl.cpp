// jsonl.cpp - libFuzzer target: JSON lines of training text.
#include "target.h"
BT_FUZZ(jsonl_parser)
