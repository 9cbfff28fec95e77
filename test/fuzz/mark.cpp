// mark.cpp - libFuzzer target: a checkpoint's mark, state/complete.
#include "target.h"
BT_FUZZ(mark_parser)
