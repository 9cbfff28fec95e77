#!/bin/bash
# Runs that touch every part of the program, by a CPU build whose device memory the host can't touch (test/apart.h): where host
# code follows a pointer to it, as it may not on a GPU, the run dies there and says who called.
#   test/apart.sh PROGRAM     the program that `make apart` has built, and calls this with
set -uo pipefail
cd "$(dirname "$0")/.."
work=build/apart/runs passed=0 failed=0
rm -rf $work && mkdir -p $work
export OMP_NUM_THREADS=1
good() {   # name, then a command
    if timeout 120 "${@:2}" > $work/log 2>&1 < /dev/null; then passed=$((passed + 1)); else echo "FAILED  $1: $*"; tail -8 $work/log; failed=$((failed + 1)); fi
}
train() {   # name, flags
    good "$1" "$program" train --data lessons/coriolanus.txt --layers 2 --dim 32 --heads 2 --seq 32 --batch 2 --steps 2 --warmup 0 --save-every 1 \
        --tokens 4 --out "$work/$1" "${@:2}"
}
program=$1
train plain --eval-every 1 --sample-every 1
train watched --stats 1 --trace 2 --ledger --spike-z 1
train rowwise --dtype bf16 --fp8 rowwise --master none --recompute full
train tensorwise --dtype bf16 --fp8 tensorwise --family qwen3 --kv-heads 1 --recompute selective
train zero1 --ranks 2 --shard zero1 --stats 1
train zero2 --ranks 4 --shard zero2 --replicate 2
train fsdp --ranks 2 --shard fsdp --gather-dtype bf16 --reduce-dtype bf16
train tp --ranks 2 --tp 2 --sp --ffn 64 --trace 1
train checked --ranks 2 --check-collectives
good resume "$program" train --resume $work/fsdp --steps 3
good replay "$program" train --replay 2 --out $work/watched
good generate "$program" generate --model $work/plain/step-000002 --prompt hello --tokens 3
good eval "$program" eval --model $work/plain/step-000002 --data lessons/small.toml --seq 32
echo '[[1,2,3],[4,5,6,7]]' > $work/ids.json
good dump "$program" dump --model $work/plain/step-000002 --ids $work/ids.json -o $work/dump.safetensors

# And it does notice: a host that reads one element.
cat > $work/looks.cpp <<'END'
#include "memory.h"
int main() { return int(baretrain::Arena(4096).take<float>(1, 1).data[0]); }
END
${CXX:-g++} -std=c++20 -I. -include test/apart.h $work/looks.cpp -o $work/looks || failed=$((failed + 1))
if { $work/looks; } 2> $work/log; then echo "FAILED  a host that reads device memory is not noticed"; failed=$((failed + 1))
elif grep -q 'the host reads or writes memory of the device' $work/log; then passed=$((passed + 1)); else failed=$((failed + 1)); cat $work/log; fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
