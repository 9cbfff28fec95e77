// tokenizer.cpp - libFuzzer target: tokenizer.json.
#include "target.h"
BT_FUZZ(tokenizer_parser)
