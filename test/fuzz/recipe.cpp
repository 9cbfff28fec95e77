// recipe.cpp - libFuzzer target: a recipe, and the config.toml of a run.
#include "target.h"
BT_FUZZ(recipe_parser)
