#!/bin/bash
# Of what a run prints that which is the same on every machine: steps without their speed, the ledger without its times.
#   ./train_gpt ... | lessons/short.sh
sed -nE '/^step/s/ *\|[^|]*tok\/s.*//p
    /^axis/,/^(besides|done|saved)/{/^(besides|done|saved)/!s/^(.{76}).{11}/\1/p}'
