// hf_config.cpp - libFuzzer target: a Hugging Face config.json.
#include "target.h"
BT_FUZZ(hf_config_parser)
