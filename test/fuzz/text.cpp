// text.cpp - libFuzzer target: training text.
#include "target.h"
BT_FUZZ(text_parser)
