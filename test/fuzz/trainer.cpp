// trainer.cpp - libFuzzer target: a checkpoint's trainer.json.
#include "target.h"
BT_FUZZ(trainer_parser)
